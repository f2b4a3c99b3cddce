CREATE STREAM I (k INT KEY, a INT) WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM IF NOT EXISTS I (k INT KEY, a INT) WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM O AS SELECT * FROM I;
CREATE STREAM IF NOT EXISTS O AS SELECT k, a+1 as b FROM I;
