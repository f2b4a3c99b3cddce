CREATE STREAM trips (bus INT KEY, riders INT) WITH (kafka_topic='trips', value_format='DELIMITED', window_type='SESSION');
CREATE STREAM long_trips AS SELECT bus, riders, WINDOWEND - WINDOWSTART AS took FROM trips WHERE WINDOWEND - WINDOWSTART > 100;
