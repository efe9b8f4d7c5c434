"""A topic's limits of produced batches come from its configs, the cluster's and the server's."""

from typing import Final

from penstock.kafka.settings import KafkaSettings
from penstock.model.topic_configs import topic_settings
from penstock.records.batch import BatchLimits
from penstock.state.read.view import Topic

_LIMITS: dict[int, tuple[Topic, dict[str, str], KafkaSettings, BatchLimits]] = {}
_LIMITS_MAX: Final = 10_000


def batch_limits(
    topic: Topic, cluster_configs: dict[str, str], server: KafkaSettings
) -> BatchLimits:
    """Return the limits of a topic's batches, computed once per version of the topic's configs.

    A view replaces a topic, and the cluster's configs, by new values when they change, so the
    identity of the values says whether the limits still hold.
    """
    known = _LIMITS.get(topic.topic_key)
    if (
        known is not None
        and known[0] is topic
        and known[1] is cluster_configs
        and known[2] is server
    ):
        return known[3]
    settings = topic_settings(topic.configs, cluster_configs)
    limits = BatchLimits(
        message_bytes_max=settings.max_message_bytes,
        timestamp_before_max_ms=settings.timestamp_before_max_ms,
        timestamp_after_max_ms=settings.timestamp_after_max_ms,
        log_append_time=settings.log_append_time,
        compacts=settings.compacts,
        validates=settings.validates_records,
        records_max=server.batch_records_max,
        decoded_bytes_max=server.batch_decoded_bytes_max,
        takes_transactions=True,
    )
    if len(_LIMITS) >= _LIMITS_MAX:
        _LIMITS.clear()
    _LIMITS[topic.topic_key] = (topic, cluster_configs, server, limits)
    return limits
