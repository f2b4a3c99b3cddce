import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.MapperFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The workloads of the benchmark as a Kafka Streams application of the DSL, exactly-once.
 *
 * <p>Arguments: workload, bootstrap servers, application id, source topic, state folder. Results go to the topics
 * {@code <application id>-<table>}. The source is keyed by what a workload groups by, which spares the application a
 * repartition topic; flights are grouped in two ways and have one for each. States are fixed binary, as small as they
 * get; results are JSON.
 */
public final class KafkaStreamsPeer {
  // Standard bean naming keeps the capitals of getMEAN.
  static final ObjectMapper MAPPER =
      JsonMapper.builder()
          .enable(MapperFeature.USE_STD_BEAN_NAMING)
          .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES)
          .build();

  public static final class Bid {
    public long auction;
    public long price;
    public long bidder;
    public long dateTime;
  }

  public static final class Flight {
    public int year;
    public int month;
    public int day;
    public Integer dep_delay;
    public Integer arr_delay;
    public String carrier;
    public String origin;
    public String dest;
    public int distance;
  }

  /** What every aggregation keeps: longs, written one after the other. */
  abstract static class State {
    abstract void write(ByteBuffer to);

    abstract void read(ByteBuffer from);

    abstract int size();
  }

  public static final class Totals extends State {
    public long N;
    public long TOTAL;
    public long TOP = Long.MIN_VALUE;

    Totals add(Bid bid) {
      N++;
      TOTAL += bid.price;
      TOP = Math.max(TOP, bid.price);
      return this;
    }

    @Override
    void write(ByteBuffer to) {
      to.putLong(N).putLong(TOTAL).putLong(TOP);
    }

    @Override
    void read(ByteBuffer from) {
      N = from.getLong();
      TOTAL = from.getLong();
      TOP = from.getLong();
    }

    @Override
    int size() {
      return 24;
    }
  }

  public static final class Last extends State {
    public long PRICE;
    public long AT = Long.MIN_VALUE;

    Last add(Bid bid) {
      if (bid.dateTime >= AT) {
        AT = bid.dateTime;
        PRICE = bid.price;
      }
      return this;
    }

    @Override
    void write(ByteBuffer to) {
      to.putLong(PRICE).putLong(AT);
    }

    @Override
    void read(ByteBuffer from) {
      PRICE = from.getLong();
      AT = from.getLong();
    }

    @Override
    int size() {
      return 16;
    }
  }

  public static final class Day extends State {
    public long BIDS;
    public long RANK1;
    public long RANK2;
    public long RANK3;
    public long RANK2_TOTAL;
    public long RANK3_TOTAL;
    public long LOWEST = Long.MAX_VALUE;
    public long HIGHEST = Long.MIN_VALUE;
    public long TOTAL;

    public double getMEAN() {
      return (double) TOTAL / BIDS;
    }

    Day add(Bid bid) {
      BIDS++;
      if (bid.price < 10_000) {
        RANK1++;
      } else if (bid.price < 1_000_000) {
        RANK2++;
        RANK2_TOTAL += bid.price;
      } else {
        RANK3++;
        RANK3_TOTAL += bid.price;
      }
      LOWEST = Math.min(LOWEST, bid.price);
      HIGHEST = Math.max(HIGHEST, bid.price);
      TOTAL += bid.price;
      return this;
    }

    @Override
    void write(ByteBuffer to) {
      to.putLong(BIDS).putLong(RANK1).putLong(RANK2).putLong(RANK3).putLong(RANK2_TOTAL).putLong(RANK3_TOTAL);
      to.putLong(LOWEST).putLong(HIGHEST).putLong(TOTAL);
    }

    @Override
    void read(ByteBuffer from) {
      BIDS = from.getLong();
      RANK1 = from.getLong();
      RANK2 = from.getLong();
      RANK3 = from.getLong();
      RANK2_TOTAL = from.getLong();
      RANK3_TOTAL = from.getLong();
      LOWEST = from.getLong();
      HIGHEST = from.getLong();
      TOTAL = from.getLong();
    }

    @Override
    int size() {
      return 72;
    }
  }

  public static final class Delays extends State {
    public long FLIGHTS;
    public long DEPARTED;
    public long LATE;
    public long TOTAL_DISTANCE;
    long sum;
    long worst = Long.MIN_VALUE;
    long best = Long.MAX_VALUE;

    public double getMEAN_DELAY() {
      return DEPARTED == 0 ? 0.0 : (double) sum / DEPARTED;
    }

    public Double getLATE_SHARE() {
      return DEPARTED == 0 ? null : (Double) ((double) LATE / DEPARTED);
    }

    public Long getWORST_DELAY() {
      return DEPARTED == 0 ? null : (Long) worst;
    }

    public Long getBEST_DELAY() {
      return DEPARTED == 0 ? null : (Long) best;
    }

    Delays add(Flight flight) {
      FLIGHTS++;
      TOTAL_DISTANCE += flight.distance;
      if (flight.dep_delay != null) {
        DEPARTED++;
        sum += flight.dep_delay;
        worst = Math.max(worst, flight.dep_delay);
        best = Math.min(best, flight.dep_delay);
        LATE += flight.dep_delay > 15 ? 1 : 0;
      }
      return this;
    }

    @Override
    void write(ByteBuffer to) {
      to.putLong(FLIGHTS).putLong(DEPARTED).putLong(LATE).putLong(TOTAL_DISTANCE);
      to.putLong(sum).putLong(worst).putLong(best);
    }

    @Override
    void read(ByteBuffer from) {
      FLIGHTS = from.getLong();
      DEPARTED = from.getLong();
      LATE = from.getLong();
      TOTAL_DISTANCE = from.getLong();
      sum = from.getLong();
      worst = from.getLong();
      best = from.getLong();
    }

    @Override
    int size() {
      return 56;
    }
  }

  public static final class RouteDay extends State {
    public long FLIGHTS;
    long arrived;
    long sum;
    long worst = Long.MIN_VALUE;

    public double getMEAN_ARR_DELAY() {
      return arrived == 0 ? 0.0 : (double) sum / arrived;
    }

    public Long getWORST_ARR_DELAY() {
      return arrived == 0 ? null : (Long) worst;
    }

    RouteDay add(Flight flight) {
      FLIGHTS++;
      if (flight.arr_delay != null) {
        arrived++;
        sum += flight.arr_delay;
        worst = Math.max(worst, flight.arr_delay);
      }
      return this;
    }

    @Override
    void write(ByteBuffer to) {
      to.putLong(FLIGHTS).putLong(arrived).putLong(sum).putLong(worst);
    }

    @Override
    void read(ByteBuffer from) {
      FLIGHTS = from.getLong();
      arrived = from.getLong();
      sum = from.getLong();
      worst = from.getLong();
    }

    @Override
    int size() {
      return 32;
    }
  }

  /** The stateless result. */
  public static final class High {
    public long AUCTION;
    public long AT;
    public long DOUBLED;

    static High of(Bid bid) {
      High high = new High();
      high.AUCTION = bid.auction;
      high.AT = bid.dateTime;
      high.DOUBLED = bid.price * 2;
      return high;
    }
  }

  static <T> Serde<T> json(Class<T> type) {
    ObjectReader reader = MAPPER.readerFor(type);
    ObjectWriter writer = MAPPER.writerFor(type);
    return Serdes.serdeFrom(
        (topic, value) -> {
          try {
            return value == null ? null : writer.writeValueAsBytes(value);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        },
        (topic, bytes) -> {
          try {
            return bytes == null ? null : reader.readValue(bytes);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        });
  }

  static <S extends State> Serde<S> binary(Supplier<S> make) {
    return Serdes.serdeFrom(
        (topic, state) -> {
          if (state == null) {
            return null;
          }
          ByteBuffer buffer = ByteBuffer.allocate(state.size());
          state.write(buffer);
          return buffer.array();
        },
        (topic, bytes) -> {
          if (bytes == null) {
            return null;
          }
          S state = make.get();
          state.read(ByteBuffer.wrap(bytes));
          return state;
        });
  }

  static <V, S extends State> void table(
      KGroupedStream<Bytes, V> grouped,
      String name,
      String topic,
      Class<S> type,
      Supplier<S> make,
      Aggregator<Bytes, V, S> add) {
    grouped
        .aggregate(
            make::get,
            add,
            Materialized.<Bytes, S, KeyValueStore<Bytes, byte[]>>as(name)
                .withKeySerde(Serdes.Bytes())
                .withValueSerde(binary(make)))
        .toStream()
        .to(topic, Produced.with(Serdes.Bytes(), json(type)));
  }

  static KGroupedStream<Bytes, Flight> by(
      KStream<Bytes, Flight> flights, String name, Function<Flight, String> key) {
    return flights.groupBy(
        (old, flight) -> Bytes.wrap(key.apply(flight).getBytes(StandardCharsets.UTF_8)),
        Grouped.with(name, Serdes.Bytes(), json(Flight.class)));
  }

  static void flights(StreamsBuilder builder, String topic, String application) {
    KStream<Bytes, Flight> flights = builder.stream(topic, Consumed.with(Serdes.Bytes(), json(Flight.class)));
    table(
        by(flights, "carriers", flight -> flight.carrier),
        "carrier_delays",
        application + "-carrier_delays",
        Delays.class,
        Delays::new,
        (key, flight, state) -> state.add(flight));
    table(
        by(
            flights,
            "routes",
            f -> f.origin + ":" + f.dest + ":" + f.year + ":" + f.month + ":" + f.day),
        "route_days",
        application + "-route_days",
        RouteDay.class,
        RouteDay::new,
        (key, flight, state) -> state.add(flight));
  }

  static void build(StreamsBuilder builder, String workload, String topic, String application) {
    if (workload.equals("flights")) {
      flights(builder, topic, application);
      return;
    }
    KStream<Bytes, Bid> bids = builder.stream(topic, Consumed.with(Serdes.Bytes(), json(Bid.class)));
    if (workload.equals("stateless")) {
      bids.filter((key, bid) -> bid.price >= 5_000)
          .mapValues(High::of)
          .to(application + "-high", Produced.with(Serdes.Bytes(), json(High.class)));
      return;
    }
    KGroupedStream<Bytes, Bid> grouped = bids.groupByKey(Grouped.with(Serdes.Bytes(), json(Bid.class)));
    switch (workload) {
      case "key-totals" ->
          table(grouped, "totals", application + "-totals", Totals.class, Totals::new, (k, bid, s) -> s.add(bid));
      case "last-per-key" ->
          table(grouped, "last", application + "-last", Last.class, Last::new, (k, bid, s) -> s.add(bid));
      case "auction-day" ->
          table(grouped, "days", application + "-days", Day.class, Day::new, (k, bid, s) -> s.add(bid));
      default -> throw new IllegalArgumentException("no such workload: " + workload);
    }
  }

  static Properties properties(String bootstrap, String application, String folder) {
    Properties properties = Application.settings(bootstrap, application, folder, 2);
    properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, Integer.parseInt(System.getenv("COMMIT_INTERVAL_MS")));
    properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    // Larger than the default of 10 MiB, so that a key that changes often in one interval is written once.
    properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 256L * 1024 * 1024);
    properties.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
    properties.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 512 * 1024);
    properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
    properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 16 * 1024 * 1024);
    properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
    // A restarted member takes its place at once instead of waiting for the session of the killed one.
    properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG), application);
    return properties;
  }

  public static void main(String[] arguments) throws InterruptedException {
    String application = arguments[2];
    StreamsBuilder builder = new StreamsBuilder();
    build(builder, arguments[0], arguments[3], application);
    Properties properties = properties(arguments[1], application, arguments[4]);
    KafkaStreams streams = new KafkaStreams(builder.build(properties), properties);
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    CountDownLatch ended = new CountDownLatch(1);
    streams.setStateListener(
        (now, before) -> {
          if (now == KafkaStreams.State.ERROR) {
            Runtime.getRuntime().halt(1);
          }
          if (now == KafkaStreams.State.NOT_RUNNING) {
            ended.countDown();
          }
        });
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
    ended.await();
  }
}
