CREATE TABLE X (a INT) WITH (kafka_topic='t', value_format='JSON');
