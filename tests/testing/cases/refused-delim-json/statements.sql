CREATE STREAM TEST (a INT) WITH (kafka_topic='t', value_format='JSON', value_delimiter='|');
