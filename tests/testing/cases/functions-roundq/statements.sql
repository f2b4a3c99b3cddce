CREATE STREAM t (K STRING KEY, v DOUBLE) WITH (kafka_topic='t', value_format='JSON');
CREATE STREAM O AS SELECT K, ROUND(v) as R0, ROUND(v, 0) as R00, ROUND(v, 1) as R1, ROUND(v, 2) as R2, ROUND(v,
    10) as R10, ROUND(v , -1) as AR , ROUND(v , -2) as BR
  FROM t;
