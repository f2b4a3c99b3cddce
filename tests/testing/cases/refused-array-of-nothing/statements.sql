CREATE STREAM parcels (code INT KEY, depot STRING, kg INT) WITH (kafka_topic='parcels', value_format='JSON');
CREATE STREAM q AS SELECT code, ARRAY[NULL, NULL] AS a FROM parcels;
