CREATE TABLE t (id INT PRIMARY KEY, g STRUCT<a INT, l ARRAY<STRING>>, n INT) WITH (kafka_topic='t', value_format='JSON');
CREATE TABLE o WITH (key_format='json') AS
  SELECT g, AS_VALUE(g) AS copy, COUNT(*) AS c, COLLECT_LIST(n) AS l FROM t WHERE n > 0 GROUP BY g HAVING COUNT(*) > 1;
CREATE TABLE p WITH (key_format='json') AS SELECT LEN(g->l[1]) + 1 AS k, HISTOGRAM(CAST(n AS STRING)) AS h, STDDEV_SAMP(n) AS v FROM t GROUP BY LEN(g->l[1]) + 1;
