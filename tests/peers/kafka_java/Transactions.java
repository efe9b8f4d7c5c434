// A transactional producer of the Java client, which speaks protocol V2 (KIP-890) where the brokers
// say that they do. Prints what it saw, a line each; the test compares.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
  static final int PARTITIONS = 2;
  static String bootstrap;

  public static void main(String[] arguments) throws Exception {
    bootstrap = arguments[0];
    String source = arguments[1], target = source + "-out";
    Properties common = new Properties();
    common.put("bootstrap.servers", bootstrap);
    try (Admin admin = Admin.create(common)) {
      admin.createTopics(
        List.of(new NewTopic(source, PARTITIONS, (short) 1), new NewTopic(target, PARTITIONS, (short) 1))
      ).all().get();
      var features = admin.describeFeatures().featureMetadata().get().finalizedFeatures();
      System.out.println("transaction.version " + features.get("transaction.version").maxVersionLevel());
    }
    KafkaProducer<String, String> producer = producer(source);
    for (int number = 0; number < 4; number++) {
      producer.beginTransaction();
      for (int partition = 0; partition < PARTITIONS; partition++) {
        producer.send(new ProducerRecord<>(source, partition, null, number + "-" + partition));
      }
      if (number == 1) {
        producer.flush();
      }
      if (number == 1 || number == 2) {
        producer.abortTransaction();
      } else {
        producer.commitTransaction();
      }
    }
    producer.beginTransaction();
    producer.commitTransaction();
    transform(producer, source, target);
    System.out.println("transformed " + read(target, 4));
    producer.beginTransaction();
    producer.send(new ProducerRecord<>(target, 0, null, "of a fenced one"));
    producer.flush();
    KafkaProducer<String, String> next = producer(source);
    try {
      producer.commitTransaction();
      System.out.println("fenced no");
    } catch (KafkaException error) {
      System.out.println("fenced " + error.getClass().getSimpleName());
    }
    next.beginTransaction();
    next.send(new ProducerRecord<>(target, 0, null, "of the next one"));
    next.commitTransaction();
    next.close();
    producer.close(Duration.ZERO);
    System.out.println("read " + read(target, 5));
  }

  static KafkaProducer<String, String> producer(String transactionalId) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("transactional.id", transactionalId);
    KafkaProducer<String, String> producer =
      new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    producer.initTransactions();
    return producer;
  }

  static KafkaConsumer<String, String> consumer(String group) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("group.id", group);
    settings.put("auto.offset.reset", "earliest");
    settings.put("enable.auto.commit", "false");
    settings.put("isolation.level", "read_committed");
    return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
  }

  /** Each record of the source, with its offset, in a transaction of its own. */
  static void transform(KafkaProducer<String, String> producer, String source, String target) {
    try (KafkaConsumer<String, String> consumer = consumer(source)) {
      consumer.subscribe(List.of(source));
      for (int done = 0; done < 4;) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
          producer.beginTransaction();
          producer.send(new ProducerRecord<>(target, record.partition(), null, record.value()));
          producer.sendOffsetsToTransaction(
            Map.of(
              new TopicPartition(source, record.partition()),
              new OffsetAndMetadata(record.offset() + 1)
            ),
            consumer.groupMetadata()
          );
          producer.commitTransaction();
          done++;
        }
      }
      Map<Integer, Long> offsets = new TreeMap<>();
      consumer.committed(consumer.assignment()).forEach(
        (place, committed) -> offsets.put(place.partition(), committed.offset())
      );
      Map<Integer, Long> ends = new TreeMap<>();
      consumer.assignment().forEach(place -> ends.put(place.partition(), consumer.position(place)));
      boolean all = offsets.size() == PARTITIONS
        && offsets.keySet().stream().allMatch(key -> offsets.get(key) <= ends.get(key));
      System.out.println("offsets of all partitions " + all);
    }
  }

  static Collection<String> read(String topic, int count) {
    List<String> found = new ArrayList<>();
    try (KafkaConsumer<String, String> consumer = consumer("unused")) {
      List<TopicPartition> places = new ArrayList<>();
      for (int partition = 0; partition < PARTITIONS; partition++) {
        places.add(new TopicPartition(topic, partition));
      }
      consumer.assign(places);
      while (found.size() < count) {
        consumer.poll(Duration.ofSeconds(1)).forEach(record -> found.add(record.value()));
      }
    }
    return found.size() == new TreeSet<>(found).size() ? new TreeSet<>(found) : found;
  }
}
