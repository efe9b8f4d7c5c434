"""The topics that there are, as consumer groups see them; their regular expressions by RE2.

RE2 takes time in proportion to the name and the expression, whatever they are, so that no client
can make an agent work by an expression alone. Kafka has RE2/J's syntax as well (KIP-848).
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from penstock.groups.consumer.messages import TopicShape

if TYPE_CHECKING:
    from penstock.state.read.view import StateView

EXPRESSION_BYTES_MAX: Final = 10_000
MEMORY_BYTES_MAX: Final = 8 << 20
"""The memory that one compiled expression may take."""


class ViewCatalog:
    """Implements `Catalog` on the view of the state."""

    def __init__(self, view: "StateView") -> None:
        self._view = view
        self._matched: dict[str, frozenset[str]] = {}
        self._matched_generation = -1

    @property
    def generation(self) -> int:
        """See `Catalog`."""
        return self._view.generation

    def shape(self, name: str) -> TopicShape | None:
        """See `Catalog`."""
        topic = self._view.topic(name)
        return None if topic is None else TopicShape(bytes(topic.topic_id), topic.partitions)

    def matching(self, regex: str) -> frozenset[str]:
        """See `Catalog`. Kept until a topic changes: all members of a group ask the same."""
        if self._matched_generation != self.generation:
            self._matched_generation = self.generation
            self._matched.clear()
        found = self._matched.get(regex)
        if found is None:
            pattern = compiled_regex(regex)
            names = [topic.name for topic in self._view.topics()] if pattern is not None else ()
            found = frozenset(name for name in names if pattern and pattern.fullmatch(name))
            self._matched[regex] = found
        return found


class Pattern(Protocol):
    """The part of RE2's patterns that is used here; RE2 has no types."""

    def fullmatch(self, text: str) -> object | None:
        """Match the whole text; None: it doesn't."""
        ...


def regex_fault(regex: str) -> str | None:
    """See `RegexFault`."""
    if len(regex) > EXPRESSION_BYTES_MAX:
        return f"it has {len(regex)} characters, {EXPRESSION_BYTES_MAX} are allowed"
    try:
        import re2
    except ImportError:
        return "this server was installed without google-re2"
    try:
        re2.compile(regex, _options())
    except re2.error as error:
        reason = error.args[0]
        return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    return None


@lru_cache(maxsize=256)
def compiled_regex(regex: str) -> Pattern | None:
    """The pattern of an expression; None: `regex_fault` finds a fault with it."""
    if regex_fault(regex) is not None:
        # It was taken where RE2 is installed, or by a release that allowed more.
        return None
    import re2

    pattern: Pattern = re2.compile(regex, _options())
    return pattern


def _options() -> object:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MAX
    return options
