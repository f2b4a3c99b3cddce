CREATE STREAM X (a INT, a INT) WITH (kafka_topic='t', value_format='JSON');
