CREATE STREAM parcels (code INT KEY, depot STRING, kg INT) WITH (kafka_topic='parcels', value_format='JSON');
CREATE STREAM `parcels.of-today` AS SELECT code, kg FROM parcels;
CREATE STREAM `parcels.of_today` AS SELECT code, kg + 1 AS kg FROM `parcels.of-today`;
