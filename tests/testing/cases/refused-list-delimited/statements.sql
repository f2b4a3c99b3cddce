CREATE STREAM marks (pupil INT KEY, mark INT) WITH (kafka_topic='marks', value_format='DELIMITED');
CREATE TABLE q AS SELECT pupil, TOPK(mark, 2) AS best FROM marks GROUP BY pupil;
