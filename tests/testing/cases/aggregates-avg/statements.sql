CREATE STREAM I (k INT KEY, a INT, d DOUBLE, m DECIMAL(6,2), s STRING)
  WITH (kafka_topic='i', value_format='JSON');
CREATE TABLE O AS SELECT k,avg(a) as aa, sum(d) as sd, sum(m) sm, min(s) mi, count(a) ca, avg(m) am, max(m) mm,
    count(a) cd
  FROM I group by k;
