"""Broker configs that are cluster-wide, may change while servers run, and set no default of topics.
Pure."""

from collections.abc import Mapping
from typing import Final

from penstock.model.topic_config import ConfigType, Standing, TopicConfig, int32

PARTITIONS_MAX: Final = 10_000
"""The greatest `transaction.partitions.max`, and the default: an end of so many partitions and
offsets is applied in less than 100 ms."""
PARTITIONS_MAX_CONFIG: Final = "transaction.partitions.max"

BROKER_CONFIGS: Final[Mapping[str, TopicConfig]] = {
    PARTITIONS_MAX_CONFIG: TopicConfig(
        name=PARTITIONS_MAX_CONFIG,
        type=ConfigType.INT,
        default=str(PARTITIONS_MAX),
        check=int32(1, PARTITIONS_MAX),
        documentation="Partitions and groups that a transaction may have, and offsets that it may "
        "hold. What would be more is refused with TRANSACTION_ABORTABLE, or INVALID_TXN_STATE in "
        "versions that don't know that.",
        standing=Standing.HONOURED,
    ),
}
"""They are described as a topic's configs are, by name. Kafka has none of them."""
