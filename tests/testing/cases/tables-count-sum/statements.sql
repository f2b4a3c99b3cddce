CREATE TABLE t (id INT PRIMARY KEY, region STRING, n BIGINT, d DOUBLE, m DECIMAL(6, 2)) WITH (kafka_topic='t', value_format='JSON');
CREATE TABLE o AS SELECT region, COUNT(*) AS c, COUNT(n) AS k, SUM(n) AS s, AVG(n) AS a, SUM(d) AS d, SUM(m) AS m FROM t GROUP BY region;
