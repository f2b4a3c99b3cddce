CREATE STREAM visits (page STRING KEY, country STRING) WITH (kafka_topic='visits', format='JSON');
CREATE TABLE counted AS SELECT *, COUNT() AS n FROM visits GROUP BY page, country;
