CREATE STREAM INPUT (K STRING KEY, a DECIMAL(10,2), b DECIMAL(5,3))
  WITH (kafka_topic='input', value_format='JSON');
CREATE STREAM OUTPUT AS SELECT K, a+b AS X0, a*b AS X1, a-b AS X2, b/a AS X3, a > 1 AS X4, a = 1.1 AS X5,
    a % 1 AS X6, a < b AS X7, CAST(a AS DOUBLE) AS X8
  FROM INPUT;
