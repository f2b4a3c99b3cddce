CREATE STREAM t (k STRING KEY, a TIMESTAMP) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM o AS SELECT k, FORMAT_TIMESTAMP(a, 'yyyy-MM-dd HH:mm:ss zz', 'America/Los_Angeles') AS name, FORMAT_TIMESTAMP(a, '''z'' VV: HH:mm XXX''X''', 'Europe/Berlin') AS offset,
  FORMAT_TIMESTAMP(a, 'HH:mm X xx Z', 'Asia/Kolkata') AS half, FORMAT_TIMESTAMP(a, 'HH:mm X x', 'UTC') AS utc, TIMESTAMPTOSTRING(UNIX_TIMESTAMP(a), 'zzz', 'Europe/London') AS london, FORMAT_TIMESTAMP(a, 'HH:mm XXX') AS plain FROM t;
