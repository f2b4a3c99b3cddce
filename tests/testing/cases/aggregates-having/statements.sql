CREATE STREAM INPUT (K STRING KEY, ID bigint, NAME varchar) WITH (kafka_topic='input', value_format='JSON');
CREATE TABLE T as SELECT k, count(*) as c FROM input group by k having count(*) = 1;
