CREATE STREAM I (A INT KEY, B STRING KEY, v INT) with (kafka_topic='input', format='json');
CREATE STREAM T as SELECT a,b,v*2 as v FROM i;
CREATE TABLE C AS SELECT v, count(*) as n from i group by v;
