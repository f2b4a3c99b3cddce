CREATE STREAM I (k INT KEY, a INT) WITH (kafka_topic='i', value_format='JSON');
CREATE TABLE O AS SELECT k,count(*) as c, WINDOWSTART as ws, windowend we
  FROM I window hopping (size 5 seconds, advance by 1 second, grace period 0 seconds) group by k;
