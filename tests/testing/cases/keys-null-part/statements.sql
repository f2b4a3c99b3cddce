CREATE STREAM seats (hall INT KEY, seat INT KEY, taken INT) WITH (kafka_topic='seats', format='JSON');
CREATE STREAM copied AS SELECT * FROM seats;
CREATE STREAM moved AS SELECT taken, seat, hall FROM seats PARTITION BY taken, seat;
