CREATE STREAM X (a INT) WITH (kafka_topic='t', format='JSON', value_format='JSON');
