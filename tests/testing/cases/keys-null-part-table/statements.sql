CREATE TABLE seats (hall INT PRIMARY KEY, seat INT PRIMARY KEY, taken INT) WITH (kafka_topic='seats', format='JSON');
CREATE TABLE copied AS SELECT * FROM seats;
