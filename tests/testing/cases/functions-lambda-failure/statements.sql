CREATE STREAM t (k STRING KEY, n ARRAY<INT>, m MAP<STRING, INT>, a INT) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM o AS SELECT k, TRANSFORM(n, x => x + 5) AS plus, TRANSFORM(n, x => a / x) AS quotients, FILTER(n, x => x > 5) AS large,
  TRANSFORM(n, x => ABS(x)) AS absolute, TRANSFORM(n, x => CASE WHEN x > 5 THEN x * a ELSE 0 END) AS cases, TRANSFORM(n, x => ARRAY[x + a, 3]) AS items,
  FILTER(m, (name, x) => LEN(name) > 3 AND x % 5 = 0) AS fifths, TRANSFORM(m, (name, x) => name, (name, x) => -x) AS minus,
  TRANSFORM(ARRAY[n, n], y => TRANSFORM(y, x => x + 5)) AS nested FROM t;
