import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/**
 * The Java client, led by its parent's lines, as tests/support/line_client.py describes them.
 *
 * <pre>
 * LineClient produce BOOTSTRAP TOPIC
 * LineClient member BOOTSTRAP TOPIC GROUP [RACK]
 * </pre>
 *
 * The end of its input ends it: the producer flushes, the member leaves its group.
 */
public final class LineClient {
  private static final Duration OFFSETS_TIMEOUT = Duration.ofSeconds(10);

  public static void main(String[] arguments) throws IOException {
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    var settings = new Properties();
    settings.put("bootstrap.servers", arguments[1]);
    settings.put("request.timeout.ms", "5000");
    settings.put("reconnect.backoff.max.ms", "500");
    if (arguments[0].equals("produce")) {
      produce(settings, arguments[2], lines);
    } else {
      settings.put("group.id", arguments[3]);
      if (arguments.length > 4) {
        settings.put("client.rack", arguments[4]);
      }
      consume(settings, arguments[2], lines);
    }
  }

  /** Idempotent, as it is unless told otherwise; a record may take a minute. */
  private static void produce(Properties settings, String topic, BufferedReader lines)
      throws IOException {
    settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
    settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
    settings.put("linger.ms", "2");
    settings.put("delivery.timeout.ms", "60000");
    settings.put("max.block.ms", "60000");
    try (var producer = new KafkaProducer<String, String>(settings)) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        String[] words = line.split(" ");
        var record =
            new ProducerRecord<String, String>(topic, Integer.valueOf(words[0]), null, words[1]);
        producer.send(
            record,
            (sent, error) ->
                say(
                    "{\"value\": %s, \"offset\": %d, \"error\": %s}",
                    quoted(words[1]), error == null ? sent.offset() : -1, text(error)));
      }
      producer.flush();
    }
  }

  /** What is assigned now; told by the consumer between polls, on the same thread. */
  private static final class Assignment implements ConsumerRebalanceListener {
    final Set<TopicPartition> partitions = new HashSet<>();
    int count;

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
      partitions.addAll(assigned);
      count++;
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
      partitions.removeAll(revoked);
    }
  }

  private static void consume(Properties settings, String topic, BufferedReader lines)
      throws IOException {
    settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
    settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
    settings.put("enable.auto.commit", "false");
    settings.put("auto.offset.reset", "earliest");
    settings.put("session.timeout.ms", "6000");
    settings.put("heartbeat.interval.ms", "500");
    settings.put("fetch.max.wait.ms", "300");
    var assignment = new Assignment();
    try (var consumer = new KafkaConsumer<String, String>(settings)) {
      consumer.subscribe(List.of(topic), assignment);
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        String[] words = line.split(" ");
        switch (words[0]) {
          case "poll" -> poll(consumer, assignment, Duration.ofMillis(Long.parseLong(words[1])));
          case "commit" -> commit(consumer, assignment);
          case "committed" -> committed(consumer, topic);
          default -> throw new IllegalArgumentException(line);
        }
      }
    }
  }

  private static void poll(
      KafkaConsumer<String, String> consumer, Assignment assignment, Duration wait) {
    var records = new StringJoiner(", ");
    KafkaException failure = null;
    try {
      for (ConsumerRecord<String, String> record : consumer.poll(wait)) {
        records.add(json(record));
      }
    } catch (KafkaException error) {
      failure = error;
    }
    say(
        "{\"assignments\": %d, \"records\": [%s], \"error\": %s}",
        assignment.count, records, text(failure));
  }

  private static String json(ConsumerRecord<String, String> record) {
    return String.format(
        "{\"partition\": %d, \"offset\": %d, \"value\": %s}",
        record.partition(), record.offset(), quoted(record.value()));
  }

  /** Commits the positions, which are behind what polls returned. */
  private static void commit(KafkaConsumer<String, String> consumer, Assignment assignment) {
    var wanted = new TreeMap<Integer, Long>();
    KafkaException failure = null;
    try {
      for (TopicPartition place : assignment.partitions) {
        wanted.put(place.partition(), consumer.position(place, OFFSETS_TIMEOUT));
      }
      consumer.commitSync(OFFSETS_TIMEOUT);
    } catch (KafkaException error) {
      failure = error;
      wanted.clear();
    }
    sayOffsets(wanted, failure);
  }

  private static void committed(KafkaConsumer<String, String> consumer, String topic) {
    var found = new TreeMap<Integer, Long>();
    KafkaException failure = null;
    try {
      Set<TopicPartition> places =
          consumer.partitionsFor(topic, OFFSETS_TIMEOUT).stream()
              .map(one -> new TopicPartition(topic, one.partition()))
              .collect(Collectors.toSet());
      for (Map.Entry<TopicPartition, OffsetAndMetadata> entry :
          consumer.committed(places, OFFSETS_TIMEOUT).entrySet()) {
        if (entry.getValue() != null) {
          found.put(entry.getKey().partition(), entry.getValue().offset());
        }
      }
    } catch (KafkaException error) {
      failure = error;
    }
    sayOffsets(found, failure);
  }

  private static void sayOffsets(Map<Integer, Long> offsets, KafkaException failure) {
    String pairs =
        offsets.entrySet().stream()
            .map(entry -> String.format("\"%d\": %d", entry.getKey(), entry.getValue()))
            .collect(Collectors.joining(", "));
    say("{\"offsets\": {%s}, \"error\": %s}", pairs, text(failure));
  }

  /** Callbacks of the producer say something, too. */
  private static synchronized void say(String format, Object... values) {
    System.out.println(String.format(format, values));
    System.out.flush();
  }

  private static String text(Exception error) {
    return quoted(error == null ? "" : error.toString());
  }

  /** A JSON string; what would need an escape is left out. */
  private static String quoted(String text) {
    return '"' + text.replaceAll("[\"\\\\\\p{Cntrl}]", "") + '"';
  }
}
