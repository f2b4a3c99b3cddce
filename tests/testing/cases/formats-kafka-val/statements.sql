CREATE STREAM I (k INT KEY, b DOUBLE) WITH (kafka_topic='i', value_format='KAFKA');
CREATE STREAM O AS SELECT k,b FROM I;
