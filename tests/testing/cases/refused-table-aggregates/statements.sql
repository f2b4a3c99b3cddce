CREATE TABLE t (id INT PRIMARY KEY, n INT) WITH (kafka_topic='t', value_format='JSON');
CREATE TABLE o AS SELECT id, LATEST_BY_OFFSET(n), MIN(n), COUNT(*), MAX(n) FROM t GROUP BY id;
