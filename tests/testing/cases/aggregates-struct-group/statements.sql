CREATE STREAM TEST (data STRUCT<field VARCHAR>) WITH (kafka_topic='t', value_format='JSON');
CREATE TABLE O AS SELECT data->field AS FIELD, COUNT(*) AS COUNT FROM TEST GROUP BY data->field;
