import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.TimestampedWindowStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;

/**
 * A Kafka Streams application with one store of raw bytes, named "s": the store of a pipeline's query.
 *
 * <p>Arguments: bootstrap servers, application id, state folder, how many input records to wait for, and "timed" or
 * "windowed". Each record of {@code <application>-in} is put into the store, or deleted from it where its value is "-".
 * When the store is restored and the records are in it, every entry is printed on a line, in hexadecimal: key, start of
 * the window, time, value; and the application ends.
 */
public final class RawPeer {
  static final long WINDOW_MS = 1_000;
  static final Duration RETENTION = Duration.ofHours(1);
  static final HexFormat HEX = HexFormat.of();

  static final class Putting implements Processor<byte[], byte[], Void, Void> {
    private final CountDownLatch awaited;
    private final boolean windowed;
    private TimestampedKeyValueStore<byte[], byte[]> timed;
    private TimestampedWindowStore<byte[], byte[]> windows;

    Putting(CountDownLatch awaited, boolean windowed) {
      this.awaited = awaited;
      this.windowed = windowed;
    }

    @Override
    public void init(ProcessorContext<Void, Void> context) {
      if (windowed) {
        windows = context.getStateStore("s");
      } else {
        timed = context.getStateStore("s");
      }
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
      boolean gone = new String(record.value(), StandardCharsets.UTF_8).equals("-");
      ValueAndTimestamp<byte[]> value = gone ? null : ValueAndTimestamp.make(record.value(), record.timestamp());
      if (windowed) {
        windows.put(record.key(), value, record.timestamp() - record.timestamp() % WINDOW_MS);
      } else {
        timed.put(record.key(), value);
      }
      awaited.countDown();
    }
  }

  static StoreBuilder<?> store(boolean windowed) {
    if (windowed) {
      return Stores.timestampedWindowStoreBuilder(
          Stores.persistentTimestampedWindowStore("s", RETENTION, Duration.ofMillis(WINDOW_MS), false),
          Serdes.ByteArray(),
          Serdes.ByteArray());
    }
    return Stores.timestampedKeyValueStoreBuilder(
        Stores.persistentTimestampedKeyValueStore("s"), Serdes.ByteArray(), Serdes.ByteArray());
  }

  static String line(byte[] key, String start, ValueAndTimestamp<byte[]> value) {
    return HEX.formatHex(key) + " " + start + " " + value.timestamp() + " =" + HEX.formatHex(value.value());
  }

  static TreeSet<String> listed(KafkaStreams streams, boolean windowed) {
    TreeSet<String> lines = new TreeSet<>();
    if (windowed) {
      try (KeyValueIterator<Windowed<byte[]>, ValueAndTimestamp<byte[]>> all =
          streams
              .store(
                  StoreQueryParameters.fromNameAndType(
                      "s", QueryableStoreTypes.<byte[], byte[]>timestampedWindowStore()))
              .all()) {
        all.forEachRemaining(e -> lines.add(line(e.key.key(), "" + e.key.window().start(), e.value)));
      }
      return lines;
    }
    try (KeyValueIterator<byte[], ValueAndTimestamp<byte[]>> all =
        streams
            .store(
                StoreQueryParameters.fromNameAndType(
                    "s", QueryableStoreTypes.<byte[], byte[]>timestampedKeyValueStore()))
            .all()) {
      all.forEachRemaining(e -> lines.add(line(e.key, "-", e.value)));
    }
    return lines;
  }

  public static void main(String[] arguments) throws InterruptedException {
    Properties settings = Application.settings(arguments[0], arguments[1], arguments[2], 1);
    settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    boolean windowed = arguments[4].equals("windowed");
    CountDownLatch records = new CountDownLatch(Integer.parseInt(arguments[3]));
    Topology topology = new Topology();
    topology.addSource(
        "in", Serdes.ByteArray().deserializer(), Serdes.ByteArray().deserializer(), arguments[1] + "-in");
    topology.addProcessor("put", () -> new Putting(records, windowed), "in");
    topology.addStateStore(store(windowed), "put");
    KafkaStreams streams = new KafkaStreams(topology, settings);
    Application.process(streams, records);
    String lines = String.join("\n", listed(streams, windowed));
    // Closing commits.
    streams.close(Duration.ofSeconds(30));
    System.out.println(lines);
    System.out.flush();
  }
}
