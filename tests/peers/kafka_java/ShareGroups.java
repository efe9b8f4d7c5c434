// Share consumers of the Java client (KIP-932) and its Admin. Prints what it saw, a line each; the
// test compares.

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class ShareGroups {
  static final int RECORDS = 6;
  static final long WAIT_MS = 60_000;
  static String bootstrap, topic, group;
  static Admin admin;

  public static void main(String[] arguments) throws Exception {
    bootstrap = arguments[0];
    topic = arguments[1];
    group = topic + "-readers";
    Properties common = new Properties();
    common.put("bootstrap.servers", bootstrap);
    admin = Admin.create(common);
    var features = admin.describeFeatures().featureMetadata().get().finalizedFeatures();
    System.out.println("share.version " + features.get("share.version").maxVersionLevel());
    KafkaShareConsumer<String, String> consumer = consumer();
    while (offset() == null) {
      consumer.poll(Duration.ofMillis(200));
    }
    produce();
    Map<Long, ConsumerRecord<String, String>> records = poll(consumer, RECORDS);
    System.out.println("first " + counts(records));
    say(consumer, records, Map.of(0L, AcknowledgeType.ACCEPT, 1L, AcknowledgeType.ACCEPT,
        2L, AcknowledgeType.RELEASE, 3L, AcknowledgeType.REJECT, 4L, AcknowledgeType.RENEW,
        5L, AcknowledgeType.RELEASE));
    System.out.println("said " + consumer.commitSync().values());
    // What is renewed is still the consumer's, which says more of it later.
    Map<Long, ConsumerRecord<String, String>> again = new TreeMap<>();
    long until = System.currentTimeMillis() + WAIT_MS;
    boolean renewed = true;
    while (again.size() < 2 && System.currentTimeMillis() < until) {
      for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
        if (record.offset() != 4) {
          again.put(record.offset(), record);
        }
        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
        renewed &= record.offset() != 4;
      }
      if (renewed) {
        consumer.acknowledge(records.get(4L), AcknowledgeType.ACCEPT);
        renewed = false;
      }
      consumer.commitSync();
    }
    System.out.println("again " + counts(again));
    var described = admin.describeShareGroups(List.of(group)).all().get().get(group);
    System.out.println("described " + described.groupState() + " " + described.members().size());
    var listed = admin.listGroups(new ListGroupsOptions().withTypes(
        Set.of(org.apache.kafka.common.GroupType.SHARE))).all().get();
    System.out.println("listed " + listed.stream().anyMatch(one -> one.groupId().equals(group)));
    while (offset() < RECORDS && System.currentTimeMillis() < until) {
      Thread.sleep(50);
    }
    System.out.println("start " + offset());
    close(consumer);
    TopicPartition place = new TopicPartition(topic, 0);
    admin.alterShareGroupOffsets(group, Map.of(place, 4L)).all().get();
    System.out.println("altered " + offset());
    consumer = consumer();
    System.out.println("after " + counts(poll(consumer, 2)));
    close(consumer);
    admin.deleteShareGroupOffsets(group, Set.of(topic)).all().get();
    System.out.println("deleted " + offset());
    admin.deleteShareGroups(List.of(group)).all().get();
    System.out.println("gone " + admin.listGroups().all().get().stream().noneMatch(one -> one.groupId().equals(group)));
    admin.close();
  }

  // A consumer that is closed does not wait for the answer to its leaving.
  static void close(KafkaShareConsumer<String, String> consumer) throws Exception {
    consumer.close();
    long until = System.currentTimeMillis() + WAIT_MS;
    while (System.currentTimeMillis() < until && !admin.describeShareGroups(List.of(group)).all()
        .get().get(group).members().isEmpty()) {
      Thread.sleep(50);
    }
  }

  static Long offset() throws Exception {
    try {
      var found = admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
          .partitionsToOffsetInfo(group).get().get(new TopicPartition(topic, 0));
      return found == null ? null : found.startOffset();
    } catch (java.util.concurrent.ExecutionException error) {
      return null;
    }
  }

  static KafkaShareConsumer<String, String> consumer() {
    Properties wanted = new Properties();
    wanted.put("bootstrap.servers", bootstrap);
    wanted.put("group.id", group);
    wanted.put("share.acknowledgement.mode", "explicit");
    KafkaShareConsumer<String, String> consumer =
        new KafkaShareConsumer<>(wanted, new StringDeserializer(), new StringDeserializer());
    consumer.subscribe(List.of(topic));
    return consumer;
  }

  static void produce() throws Exception {
    Properties wanted = new Properties();
    wanted.put("bootstrap.servers", bootstrap);
    wanted.put("linger.ms", "1000");
    try (var producer = new KafkaProducer<>(wanted, new StringSerializer(), new StringSerializer())) {
      for (int number = 0; number < RECORDS; number++) {
        producer.send(new ProducerRecord<>(topic, 0, null, "" + number));
      }
    }
  }

  static Map<Long, ConsumerRecord<String, String>> poll(
      KafkaShareConsumer<String, String> consumer, int count) {
    Map<Long, ConsumerRecord<String, String>> found = new TreeMap<>();
    long until = System.currentTimeMillis() + WAIT_MS;
    while (found.size() < count && System.currentTimeMillis() < until) {
      for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
        found.put(record.offset(), record);
      }
    }
    return found;
  }

  static void say(KafkaShareConsumer<String, String> consumer,
      Map<Long, ConsumerRecord<String, String>> records, Map<Long, AcknowledgeType> words) {
    records.forEach((offset, record) -> consumer.acknowledge(record, words.get(offset)));
  }

  static List<String> counts(Map<Long, ConsumerRecord<String, String>> records) {
    List<String> found = new ArrayList<>();
    records.forEach((offset, record) ->
        found.add(record.value() + "x" + record.deliveryCount().orElse((short) -1)));
    return found;
  }
}
