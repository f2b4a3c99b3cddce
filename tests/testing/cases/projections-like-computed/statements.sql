CREATE STREAM words (id INT KEY, w STRING, p STRING) WITH (kafka_topic='words', value_format='JSON');
CREATE STREAM liked AS SELECT id, w LIKE p AS plain, w LIKE p ESCAPE '#' AS escaped FROM words;
