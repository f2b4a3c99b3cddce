import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.Stores;

/**
 * Restores the store "s" of an application from its changelog, on an empty disk, and prints how long that took.
 *
 * <p>Arguments: bootstrap servers, application id, state folder. The source topic is {@code <application>-in}. The time
 * is from the first partition that begins to the last that ends: starting the JVM and joining the group do not count.
 */
public final class KafkaStreamsRestore {
  static final AtomicLong RECORDS = new AtomicLong();
  static final AtomicLong BEGUN = new AtomicLong(Long.MAX_VALUE);
  static final AtomicLong ENDED = new AtomicLong();

  static final class Listener implements StateRestoreListener {
    @Override
    public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
      BEGUN.accumulateAndGet(System.nanoTime(), Math::min);
    }

    @Override
    public void onBatchRestored(TopicPartition partition, String store, long end, long records) {}

    @Override
    public void onRestoreEnd(TopicPartition partition, String store, long records) {
      RECORDS.addAndGet(records);
      ENDED.accumulateAndGet(System.nanoTime(), Math::max);
    }
  }

  static final class Nothing implements Processor<byte[], byte[], Void, Void> {
    @Override
    public void process(Record<byte[], byte[]> record) {}
  }

  // Halting is the end of it.
  @SuppressWarnings("resource")
  public static void main(String[] arguments) throws InterruptedException {
    Properties settings = Application.settings(arguments[0], arguments[1], arguments[2], 2);
    // Larger fetches and batches than by default: it restores faster with them.
    settings.put(StreamsConfig.restoreConsumerPrefix("max.poll.records"), 10_000);
    settings.put(StreamsConfig.restoreConsumerPrefix("fetch.max.bytes"), 64 << 20);
    settings.put(StreamsConfig.restoreConsumerPrefix("max.partition.fetch.bytes"), 16 << 20);
    Topology topology = new Topology();
    topology.addSource(
        "in", Serdes.ByteArray().deserializer(), Serdes.ByteArray().deserializer(), arguments[1] + "-in");
    topology.addProcessor("nothing", Nothing::new, "in");
    topology.addStateStore(
        Stores.timestampedKeyValueStoreBuilder(
            Stores.persistentTimestampedKeyValueStore("s"), Serdes.ByteArray(), Serdes.ByteArray()),
        "nothing");
    Map<String, Throwable> failure = new ConcurrentHashMap<>();
    KafkaStreams streams = new KafkaStreams(topology, settings);
    CountDownLatch running = Application.running(streams);
    streams.setUncaughtExceptionHandler(
        error -> {
          failure.put("error", error);
          running.countDown();
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    streams.setGlobalStateRestoreListener(new Listener());
    streams.start();
    if (!running.await(30, TimeUnit.MINUTES) || !failure.isEmpty()) {
      System.err.println("not restored: " + failure);
      Runtime.getRuntime().halt(1);
    }
    double seconds = (ENDED.get() - BEGUN.get()) / 1e9;
    System.out.printf(Locale.ROOT, "{\"records\": %d, \"seconds\": %.3f}%n", RECORDS.get(), seconds);
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }
}
