CREATE STREAM I (k INT KEY, a STRING, b BIGINT) WITH (kafka_topic='i', format='JSON');
CREATE STREAM O AS SELECT * FROM I partition by a, b;
CREATE STREAM P AS SELECT * FROM I partition by b+1;
