CREATE STREAM I (k INT KEY, a STRING, b BIGINT) WITH (kafka_topic='i', format='JSON');
CREATE TABLE O AS SELECT a,b,count() as c FROM I group by (a, b);
