CREATE STREAM X (a INT PRIMARY KEY, b INT) WITH (kafka_topic='t', value_format='JSON');
