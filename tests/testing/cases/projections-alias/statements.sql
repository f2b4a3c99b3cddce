CREATE STREAM I (k INT KEY, a INT) WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM O AS SELECT x.k, x.a + 1 as b, x.* FROM I x;
