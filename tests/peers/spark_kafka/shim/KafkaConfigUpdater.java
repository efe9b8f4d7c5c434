package org.apache.spark.kafka010;

import java.util.HashMap;
import java.util.Map;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;

/** Parameters of a Kafka client, without tokens. */
public class KafkaConfigUpdater {
  private final Map<String, Object> params = new HashMap<>();

  public KafkaConfigUpdater(String module, scala.collection.immutable.Map<String, Object> given) {
    Iterator<Tuple2<String, Object>> each = given.iterator();
    while (each.hasNext()) {
      Tuple2<String, Object> one = each.next();
      params.put(one._1(), one._2());
    }
  }

  public KafkaConfigUpdater set(String key, Object value) {
    params.put(key, value);
    return this;
  }

  public KafkaConfigUpdater setIfUnset(String key, Object value) {
    params.putIfAbsent(key, value);
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded() {
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded(Option<?> tokens) {
    return this;
  }

  public Map<String, Object> build() {
    return params;
  }
}
