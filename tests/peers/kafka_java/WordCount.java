// Kafka Streams counts words under one of the group protocols, is stopped, and counts on in a second
// life of two threads, whose state comes from the changelog. Prints what it saw, a line each; the
// test compares.

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

public class WordCount {
  static final int PARTITIONS = 3;
  static final long SECONDS_MAX = 120;
  static String bootstrap, protocol, guarantee, application, folder;

  public static void main(String[] arguments) throws Exception {
    bootstrap = arguments[0];
    protocol = arguments[1];
    guarantee = arguments[2];
    folder = arguments[3];
    application = "count-" + protocol + "-" + guarantee.replace("_", "");
    try (Admin admin = Admin.create(common())) {
      admin.createTopics(
        List.of(
          new NewTopic(application + "-in", PARTITIONS, (short) 1),
          new NewTopic(application + "-out", PARTITIONS, (short) 1)
        )
      ).all().get();
      try (KafkaStreams streams = started(1)) {
        say("a rose is a rose");
        System.out.println("first " + counts(Map.of("a", 2L, "rose", 2L, "is", 1L)));
      }
      try (KafkaStreams streams = started(2)) {
        say("is a daisy a rose");
        System.out.println("then " + counts(Map.of("a", 4L, "rose", 3L, "is", 2L, "daisy", 1L)));
        if (protocol.equals("streams")) {
          var group = admin.describeStreamsGroups(List.of(application)).all().get().get(application);
          System.out.println("described " + group.members().size() + " members of " + group.subtopologies().size());
        }
      }
      var names = new TreeSet<String>();
      for (String name : admin.listTopics().names().get()) {
        if (name.startsWith(application) && !name.endsWith("-in") && !name.endsWith("-out")) {
          names.add(name.substring(application.length() + 1));
        }
      }
      System.out.println("topics " + names);
      for (var group : admin.listGroups().all().get()) {
        if (group.groupId().equals(application)) {
          System.out.println("listed " + group.type().get());
        }
      }
    }
  }

  static Properties common() {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", bootstrap);
    return properties;
  }

  static KafkaStreams started(int threads) throws Exception {
    Properties properties = common();
    properties.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
    properties.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, protocol);
    properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
    properties.put(StreamsConfig.STATE_DIR_CONFIG, folder);
    properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, threads);
    properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
    properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(application + "-in", Consumed.with(Serdes.String(), Serdes.String()))
      .flatMapValues(line -> Arrays.asList(line.split(" ")))
      .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
      .count(
        Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
          .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long())
      )
      .toStream()
      .to(application + "-out", Produced.with(Serdes.String(), Serdes.Long()));
    KafkaStreams streams = new KafkaStreams(builder.build(), properties);
    CountDownLatch running = new CountDownLatch(1);
    streams.setStateListener((now, before) -> {
      if (now == KafkaStreams.State.RUNNING) {
        running.countDown();
      }
    });
    streams.start();
    if (!running.await(SECONDS_MAX, TimeUnit.SECONDS)) {
      throw new IllegalStateException("it is " + streams.state());
    }
    return streams;
  }

  static void say(String line) throws Exception {
    Properties properties = common();
    try (KafkaProducer<String, String> producer =
        new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
      producer.send(new ProducerRecord<>(application + "-in", null, line)).get();
    }
  }

  static Map<String, Long> counts(Map<String, Long> wanted) {
    Properties properties = common();
    properties.put("auto.offset.reset", "earliest");
    properties.put("isolation.level", "read_committed");
    Map<String, Long> found = new TreeMap<>();
    try (KafkaConsumer<String, Long> consumer =
        new KafkaConsumer<>(properties, new StringDeserializer(), new LongDeserializer())) {
      var partitions = consumer.partitionsFor(application + "-out").stream()
        .map(one -> new org.apache.kafka.common.TopicPartition(one.topic(), one.partition())).toList();
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
      while (!found.equals(wanted) && System.nanoTime() < end) {
        for (ConsumerRecord<String, Long> record : consumer.poll(Duration.ofMillis(500))) {
          found.put(record.key(), record.value());
        }
      }
    }
    return found;
  }
}
