CREATE STREAM items (id INT KEY, name STRING, price DECIMAL(5, 2), sold BOOLEAN, tags ARRAY<BIGINT>, sizes MAP<STRING, BIGINT>, box STRUCT<w BIGINT, h BIGINT>) WITH (kafka_topic='items', value_format='JSON');
CREATE STREAM q AS SELECT * FROM items WHERE sizes IN (MAP('a' := 'many'));
