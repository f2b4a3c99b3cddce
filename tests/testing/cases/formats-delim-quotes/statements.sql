CREATE STREAM i (k INT KEY, s STRING, t STRING) WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM o WITH (value_format='DELIMITED') AS SELECT * FROM i;
