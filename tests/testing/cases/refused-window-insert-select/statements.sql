CREATE STREAM means (room STRING KEY, mean DOUBLE) WITH (kafka_topic='means', value_format='JSON', window_type='Hopping', window_size='1 minute');
CREATE STREAM plain (room STRING KEY, mean DOUBLE) WITH (kafka_topic='plain', value_format='JSON');
INSERT INTO plain SELECT * FROM means;
