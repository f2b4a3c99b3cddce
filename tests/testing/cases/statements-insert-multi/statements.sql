CREATE STREAM I (k INT KEY, a INT) WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM J (k INT KEY, a INT) WITH (kafka_topic='j', value_format='DELIMITED');
CREATE STREAM O (k INT KEY, a INT) WITH (kafka_topic='o', value_format='JSON');
INSERT INTO O SELECT * FROM I;
INSERT INTO O SELECT * FROM J;
