CREATE STREAM I (k INT KEY, a INT, b BIGINT, s STRING, d DOUBLE, arr ARRAY<INT>)
  WITH (kafka_topic='i', value_format='JSON');
CREATE TABLE O AS SELECT a % 2 as p, a % 2 + 1 as q, SUM(b)*2 as x, MAX(d) as m FROM I GROUP BY a % 2;
