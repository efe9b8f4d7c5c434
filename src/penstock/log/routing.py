"""A topic's durability says which append path its batches take; never two paths at once.

A topic whose durability is changed stays on its old path until none of its batches are under way
there, so that its producers' batches can't overtake one another.
"""

import enum
from collections.abc import Callable

from penstock.model.ids import TopicKey
from penstock.model.topic_configs import topic_settings
from penstock.state.read.view import StateView, Topic

_KNOWN_MAX = 10_000


class Path(enum.Enum):
    """An append path."""

    WAL = "wal"
    OBJECT = "object"


class Route:
    """A topic's path and how long its batches may wait for company; -1: as the agent says."""

    __slots__ = ("cluster_configs", "flush_interval_ms", "path", "topic")

    def __init__(
        self, topic: Topic, cluster_configs: dict[str, str], path: Path, flush_interval_ms: int
    ) -> None:
        self.topic = topic
        self.cluster_configs = cluster_configs
        self.path = path
        self.flush_interval_ms = flush_interval_ms


class Routes:
    """Routes by topic. Event loop only.

    Args:
        default: of topics that leave it to the agent.
        is_under_way: whether batches of a topic are under way on a path.
    """

    def __init__(
        self,
        *,
        view: StateView,
        default: Path,
        is_under_way: Callable[[Path, TopicKey], bool],
    ) -> None:
        self._view = view
        self.default = default
        self._is_under_way = is_under_way
        self._known: dict[TopicKey, Route] = {}

    def of(self, topic_key: TopicKey) -> Route | None:
        """The topic's route now; None: there is no such topic."""
        topic = self._view.topic_by_key(topic_key)
        if topic is None:
            self._known.pop(topic_key, None)
            return None
        configs = self._view.cluster_configs
        known = self._known.get(topic_key)
        # A view replaces topics and configs that change, so that identity tells.
        if known is not None and known.topic is topic and known.cluster_configs is configs:
            return known
        settings = topic_settings(topic.configs, configs)
        path = Path(settings.durability) if settings.durability else self.default
        route = Route(topic, configs, path, settings.flush_interval_ms)
        if (
            known is not None
            and known.path is not path
            and self._is_under_way(known.path, topic_key)
        ):
            return known
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[topic_key] = route
        return route
