CREATE STREAM I (k INT KEY, a INT) WITH (kafka_topic='i', value_format='JSON');
CREATE TABLE O AS SELECT k, count(*) c FROM I GROUP BY k EMIT FINAL;
