-- Flights that left New York City in 2013: how punctual is each airline, and each route on each day?
--
-- A pipeline is a file of statements. CREATE STREAM says how the records of a Kafka topic look. CREATE TABLE … AS
-- keeps an aggregation of them up to date: for every batch of new records, one record per changed row goes to the
-- table's own topic (here <pipeline>-carrier_delays and <pipeline>-route_days), keyed by what stands in GROUP BY.
-- Names may be written in any case; they are upper case unless `back-quoted`.

-- One JSON object per flight. Times of day are numbers such as 1752 for 17:52, delays are minutes (negative: early),
-- distances miles. A cancelled flight has no departure: its times and delays are JSON null, which is NULL here.
CREATE STREAM flights (
    year INT,
    month INT,
    day INT,
    dep_time INT,
    sched_dep_time INT,
    dep_delay INT,
    arr_time INT,
    sched_arr_time INT,
    arr_delay INT,
    carrier VARCHAR,      -- airline, two characters: 'UA', '9E'
    flight INT,
    tailnum VARCHAR,      -- the aeroplane
    origin VARCHAR,       -- airports: 'JFK', 'LAX'
    dest VARCHAR,
    air_time INT,
    distance INT,
    hour INT,
    minute INT,
    time_hour VARCHAR
) WITH (kafka_topic = 'flights', value_format = 'json');

-- One row per airline. COUNT(*) counts rows, COUNT(x) and AVG(x) leave out those where x is NULL: a cancelled flight
-- is a flight, but has no delay. The mean of no delay at all is 0, the largest and smallest are NULL. A table has one key column, its bytes plain text (the key format 'kafka').
CREATE TABLE carrier_delays AS
SELECT
    carrier,
    COUNT(*) AS flights,
    COUNT(dep_delay) AS departed,
    AVG(dep_delay) AS mean_delay,
    MAX(dep_delay) AS worst_delay,
    MIN(dep_delay) AS best_delay,
    SUM(CASE WHEN dep_delay > 15 THEN 1 ELSE 0 END) AS late,
    -- Whole numbers divide to a whole number, so one side is made a DOUBLE. Divided by zero gives NULL.
    CAST(SUM(CASE WHEN dep_delay > 15 THEN 1 ELSE 0 END) AS DOUBLE) / COUNT(dep_delay) AS late_share,
    SUM(distance) AS total_distance
FROM flights
GROUP BY carrier
EMIT CHANGES;

-- One row per route and day. Several columns in GROUP BY make a key that is a JSON object, so the format is named.
CREATE TABLE route_days WITH (key_format = 'json') AS
SELECT
    origin,
    dest,
    year,
    month,
    day,
    COUNT(*) AS flights,
    AVG(arr_delay) AS mean_arr_delay,
    MAX(arr_delay) AS worst_arr_delay
FROM flights
GROUP BY origin, dest, year, month, day
EMIT CHANGES;
