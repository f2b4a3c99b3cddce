CREATE STREAM means (room STRING KEY, mean DOUBLE) WITH (kafka_topic='means', value_format='JSON', window_type='Hopping', window_size='1 minute');
CREATE STREAM warm AS SELECT *, WINDOWSTART AS since, means.WINDOWEND AS until FROM means WHERE mean > 20.0;
CREATE STREAM late AS SELECT room, since, WINDOWEND - since AS size FROM warm WHERE WINDOWSTART > 0;
