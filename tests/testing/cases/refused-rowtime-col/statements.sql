CREATE STREAM X (rowtime INT, a INT) WITH (kafka_topic='t', value_format='JSON');
