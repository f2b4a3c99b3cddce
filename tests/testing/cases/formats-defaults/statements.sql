SET 'ksql.persistence.default.format.value' = 'DELIMITED';
SET 'ksql.persistence.default.format.key' = 'JSON';
CREATE STREAM trips (driver STRUCT<id INT> KEY, km INT, city STRING) WITH (kafka_topic='trips');
CREATE STREAM told (driver INT KEY, km INT) WITH (kafka_topic='told', key_format='kafka', value_format='json');
UNSET 'ksql.persistence.default.format.value';
CREATE STREAM both (driver INT KEY, km INT) WITH (kafka_topic='both', format='json');
CREATE STREAM far AS SELECT driver, km FROM trips WHERE km > 10;
CREATE STREAM told_far AS SELECT * FROM told WHERE km > 10;
