CREATE STREAM items (id INT KEY, name STRING, price DECIMAL(5, 2), sold BOOLEAN, tags ARRAY<BIGINT>, sizes MAP<STRING, BIGINT>, box STRUCT<w BIGINT, h BIGINT>) WITH (kafka_topic='items', value_format='JSON');
CREATE TABLE q AS SELECT UCASE(name) AS u FROM items GROUP BY id;
