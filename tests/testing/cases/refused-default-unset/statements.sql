SET 'ksql.persistence.default.format.value' = 'JSON';
CREATE STREAM a (k INT KEY, n INT) WITH (kafka_topic='a');
UNSET 'ksql.persistence.default.format.value';
CREATE STREAM b (k INT KEY, n INT) WITH (kafka_topic='b');
