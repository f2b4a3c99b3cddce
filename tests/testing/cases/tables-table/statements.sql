CREATE TABLE I (K STRING PRIMARY KEY, id bigint) with (kafka_topic='input', value_format='json');
CREATE TABLE T as SELECT k, id+1 as x FROM i where id>0;
