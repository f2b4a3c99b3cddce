CREATE STREAM deltas (id INT KEY, d INT, t STRING) WITH (kafka_topic='deltas', value_format='JSON');
CREATE STREAM numbers WITH (value_format='DELIMITED') AS SELECT id, d FROM deltas;
CREATE STREAM texts WITH (value_format='DELIMITED') AS SELECT id, t FROM deltas;
