CREATE STREAM seats (hall INT KEY, seat INT KEY, taken INT) WITH (kafka_topic='seats', format='JSON');
INSERT INTO seats (hall, taken) VALUES (3, 1);
INSERT INTO seats (taken) VALUES (2);
CREATE STREAM copied AS SELECT * FROM seats;
