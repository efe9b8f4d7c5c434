package org.apache.spark.kafka010;

import java.util.Map;
import org.apache.spark.SparkConf;
import scala.Option;

/** There are no tokens. */
public class KafkaTokenUtil$ {
  public static final KafkaTokenUtil$ MODULE$ = new KafkaTokenUtil$();

  public boolean needTokenUpdate(Map<String, Object> params, Option<?> tokens) {
    return false;
  }

  @SuppressWarnings({"unchecked", "rawtypes"})
  public Option findMatchingTokenClusterConfig(SparkConf conf, String servers) {
    return scala.None$.MODULE$;
  }
}
