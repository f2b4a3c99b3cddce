import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/** What the programs share: their settings, and running until the input is in the stores. */
final class Application {
  private Application() {}

  /** Exactly-once, with so many threads. */
  static Properties settings(String bootstrap, String application, String folder, int threads) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, threads);
    return settings;
  }

  /** Counts down when the application runs: its stores are restored. */
  static CountDownLatch running(KafkaStreams streams) {
    CountDownLatch running = new CountDownLatch(1);
    streams.setStateListener(
        (now, before) -> {
          if (now == KafkaStreams.State.RUNNING) {
            running.countDown();
          }
        });
    return running;
  }

  /** Starts it; returns when it runs and has processed so many records, and ends the process where it does not. */
  static void process(KafkaStreams streams, CountDownLatch records) throws InterruptedException {
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          Runtime.getRuntime().halt(1);
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    CountDownLatch running = running(streams);
    streams.start();
    if (!running.await(100, TimeUnit.SECONDS) || !records.await(100, TimeUnit.SECONDS)) {
      System.err.println("not running, or input missing: " + streams.state());
      Runtime.getRuntime().halt(1);
    }
  }
}
