CREATE STREAM INPUT (K STRING KEY, ID bigint, NAME varchar) WITH (kafka_topic='input', value_format='JSON');
CREATE STREAM A AS SELECT * FROM INPUT WHERE ID > 1;
CREATE STREAM B WITH (value_format='delimited') AS SELECT *, ROWTIME as R FROM A PARTITION BY ID;
INSERT INTO A SELECT k, id+10 as id, name from input where id=1;
