CREATE STREAM seats (hall INT KEY, seat INT KEY, taken INT) WITH (kafka_topic='seats', format='JSON');
CREATE STREAM q AS SELECT hall, taken FROM seats;
