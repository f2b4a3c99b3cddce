CREATE STREAM INPUT (K STRING KEY, ID bigint, NAME varchar) WITH (kafka_topic='input', value_format='JSON');
CREATE TABLE T as SELECT k, count(*) as c, windowstart as ws
  FROM input window tumbling (size 10 seconds) group by k;
