import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreType;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.WindowStore;

/**
 * A Kafka Streams application with a store of each sort, for the exchange of changelogs.
 *
 * <p>Arguments: bootstrap servers, application id, state folder, how many input records to wait for. Each record of
 * {@code <application>-in} is put into all stores, or deleted from them where its value is "-". When the stores are
 * restored and the records are in them, every entry is printed on a line, sorted, and the application ends.
 */
public final class StoresPeer {
  static final long WINDOW_MS = 1_000;
  static final Duration RETENTION = Duration.ofHours(1);

  static final class Putting implements Processor<String, String, Void, Void> {
    private final CountDownLatch awaited;
    private KeyValueStore<String, String> plain;
    private TimestampedKeyValueStore<String, String> timed;
    private WindowStore<String, String> windows;
    private SessionStore<String, String> sessions;

    Putting(CountDownLatch awaited) {
      this.awaited = awaited;
    }

    @Override
    public void init(ProcessorContext<Void, Void> context) {
      plain = context.getStateStore("plain");
      timed = context.getStateStore("timed");
      windows = context.getStateStore("windows");
      sessions = context.getStateStore("sessions");
    }

    @Override
    public void process(Record<String, String> record) {
      String key = record.key();
      String value = record.value().equals("-") ? null : record.value();
      long start = record.timestamp() - record.timestamp() % WINDOW_MS;
      plain.put(key, value);
      timed.put(key, value == null ? null : ValueAndTimestamp.make(value, record.timestamp()));
      windows.put(key, value, start);
      sessions.put(new Windowed<>(key, new SessionWindow(start, start + WINDOW_MS / 2)), value);
      awaited.countDown();
    }
  }

  static Topology topology(String application, CountDownLatch awaited) {
    Topology topology = new Topology();
    topology.addSource("in", Serdes.String().deserializer(), Serdes.String().deserializer(), application + "-in");
    topology.addProcessor("put", () -> new Putting(awaited), "in");
    topology.addStateStore(
        Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("plain"), Serdes.String(), Serdes.String()), "put");
    topology.addStateStore(
        Stores.timestampedKeyValueStoreBuilder(
            Stores.persistentTimestampedKeyValueStore("timed"), Serdes.String(), Serdes.String()),
        "put");
    topology.addStateStore(
        Stores.windowStoreBuilder(
            Stores.persistentWindowStore("windows", RETENTION, Duration.ofMillis(WINDOW_MS), false),
            Serdes.String(),
            Serdes.String()),
        "put");
    topology.addStateStore(
        Stores.sessionStoreBuilder(
            Stores.persistentSessionStore("sessions", RETENTION), Serdes.String(), Serdes.String()),
        "put");
    return topology;
  }

  static <T> T store(KafkaStreams streams, String name, QueryableStoreType<T> type) {
    return streams.store(StoreQueryParameters.fromNameAndType(name, type));
  }

  static TreeSet<String> listed(KafkaStreams streams) {
    TreeSet<String> lines = new TreeSet<>();
    try (KeyValueIterator<String, String> all = store(streams, "plain", QueryableStoreTypes.<String, String>keyValueStore()).all()) {
      all.forEachRemaining(e -> lines.add("plain " + e.key + " " + e.value));
    }
    try (KeyValueIterator<String, ValueAndTimestamp<String>> all =
        store(streams, "timed", QueryableStoreTypes.<String, String>timestampedKeyValueStore()).all()) {
      all.forEachRemaining(e -> lines.add("timed " + e.key + " " + e.value.timestamp() + " " + e.value.value()));
    }
    try (KeyValueIterator<Windowed<String>, String> all =
        store(streams, "windows", QueryableStoreTypes.<String, String>windowStore()).all()) {
      all.forEachRemaining(e -> lines.add("windows " + e.key.key() + " " + e.key.window().start() + " " + e.value));
    }
    try (KeyValueIterator<Windowed<String>, String> all =
        store(streams, "sessions", QueryableStoreTypes.<String, String>sessionStore()).fetch(null, null)) {
      all.forEachRemaining(
          e ->
              lines.add(
                  "sessions " + e.key.key() + " " + e.key.window().start() + " " + e.key.window().end() + " " + e.value));
    }
    return lines;
  }

  public static void main(String[] arguments) throws InterruptedException {
    Properties settings = Application.settings(arguments[0], arguments[1], arguments[2], 1);
    settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    CountDownLatch records = new CountDownLatch(Integer.parseInt(arguments[3]));
    KafkaStreams streams = new KafkaStreams(topology(arguments[1], records), settings);
    Application.process(streams, records);
    String lines = String.join("\n", listed(streams));
    // Closing commits.
    streams.close(Duration.ofSeconds(30));
    System.out.write((lines + "\n").getBytes(StandardCharsets.UTF_8), 0, lines.getBytes(StandardCharsets.UTF_8).length + 1);
    System.out.flush();
  }
}
