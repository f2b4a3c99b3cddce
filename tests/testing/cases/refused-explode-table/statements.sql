CREATE TABLE s (k INT PRIMARY KEY, a ARRAY<INT>) WITH (kafka_topic='s', value_format='JSON');
CREATE TABLE o AS SELECT k, EXPLODE(a) FROM s;
