CREATE STREAM parcels (code INT KEY, depot STRING, kg INT) WITH (kafka_topic='parcels', value_format='JSON');
CREATE TABLE q AS SELECT COUNT(*) FROM parcels GROUP BY depot AND kg;
