CREATE STREAM i (k MAP<STRING, DOUBLE> KEY, foo INT) WITH (kafka_topic='i', format='JSON');
