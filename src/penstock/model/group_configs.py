"""Group configs: what may be set of one group (GROUP resources), and which value counts. Pure.

An effective value is the group's own, else the server's setting where there is one, else Kafka's
default. Names, defaults, bounds and messages are those of Kafka 4.3.1's GroupConfig; a value is
bounded by broker configs whose Kafka defaults are fixed here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import InvalidRequestError
from penstock.model.topic_config import INT32_MAX, ConfigType, int32

CONSUMER_SESSION: Final = "consumer.session.timeout.ms"
CONSUMER_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
CONSUMER_ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
SHARE_SESSION: Final = "share.session.timeout.ms"
SHARE_HEARTBEAT: Final = "share.heartbeat.interval.ms"
SHARE_LOCK_DURATION: Final = "share.record.lock.duration.ms"
SHARE_DELIVERY_LIMIT: Final = "share.delivery.count.limit"
SHARE_LOCKS_MAX: Final = "share.partition.max.record.locks"
SHARE_OFFSET_RESET: Final = "share.auto.offset.reset"
SHARE_ISOLATION: Final = "share.isolation.level"
SHARE_RENEW: Final = "share.renew.acknowledge.enable"
STREAMS_SESSION: Final = "streams.session.timeout.ms"
STREAMS_HEARTBEAT: Final = "streams.heartbeat.interval.ms"
STREAMS_ASSIGNMENT_INTERVAL: Final = "streams.assignment.interval.ms"
STREAMS_STANDBY: Final = "streams.num.standby.replicas"
STREAMS_INITIAL_DELAY: Final = "streams.initial.rebalance.delay.ms"

VALUE_CHARACTERS_MAX: Final = 100
BY_DURATION: Final = "by_duration:"
"""Begins a `share.auto.offset.reset` that starts some time ago: an ISO 8601 duration follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One config. `low` and `high` are the broker's bounds of a number, `least` the config's own;
    `allowed` are the values of a text."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    broker_name: str = ""
    """The broker config that sets its default in Kafka; empty: none does."""
    least: int = 1
    low: int | None = None
    high: int | None = None
    allowed: tuple[str, ...] = ()
    high_name: str = ""
    """The broker config of `high` where it isn't named as the others are."""

    def problem(self, value: str) -> str:
        """Say what is wrong with a value, as Kafka words it; empty: nothing."""
        if len(value) > VALUE_CHARACTERS_MAX:
            return f"{self.name} has a value of {len(value)} characters"
        start = f"Invalid value {value} for configuration {self.name}"
        if self.type is ConfigType.BOOLEAN:
            if value.strip().lower() in ("true", "false"):
                return ""
            return f"{start}: Expected value to be either true or false"
        if self.name == SHARE_OFFSET_RESET:
            if value in self.allowed or (
                value.startswith(BY_DURATION) and _is_duration(value.removeprefix(BY_DURATION))
            ):
                return ""
            return (
                f"{start}: Invalid value `{value}` for configuration {self.name}. The value must be"
                " either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
            )
        if self.type is ConfigType.STRING:
            if value in self.allowed:
                return ""
            return f"{start}: String must be one of: {', '.join(self.allowed)}"
        if int32(-INT32_MAX - 1)(value) is not None:
            return f"{start}: Not a number of type INT"
        if int(value) < self.least:
            return f"{start}: Value must be at least {self.least}"
        if self.low is not None and int(value) < self.low:
            return f"{self.name} must be greater than or equal to {_bound(self.broker_name, 'min')}"
        if self.high is not None and int(value) > self.high:
            named = self.high_name or _bound(self.broker_name, "max")
            return f"{self.name} must be less than or equal to {named}"
        return ""


def validate_group(configs: Mapping[str, str], defaults: Mapping[str, str]) -> None:
    """Check all of a group's own configs.

    Args:
        defaults: the server's, for those that aren't set; see `effective_group`.

    Raises:
        InvalidRequestError: a name that Kafka does not have, a bad value, or two that contradict.
    """
    for name in configs:
        if name not in GROUP_CONFIGS:
            raise InvalidRequestError(
                "validate", "group config", f"Unknown group config name: {name}"
            )
    for name, value in configs.items():
        problem = GROUP_CONFIGS[name].problem(value)
        if problem:
            raise InvalidRequestError("validate", f"group config {name}", problem)
    for session, heartbeat in (
        (CONSUMER_SESSION, CONSUMER_HEARTBEAT),
        (SHARE_SESSION, SHARE_HEARTBEAT),
        (STREAMS_SESSION, STREAMS_HEARTBEAT),
    ):
        if session not in configs and heartbeat not in configs:
            # The server's settings are its operator's.
            continue
        session_ms = group_number(session, configs, defaults)
        if session_ms <= group_number(heartbeat, configs, defaults):
            raise InvalidRequestError(
                "validate", f"group config {session}", f"{session} must be greater than {heartbeat}"
            )


def effective_group(name: str, configs: Mapping[str, str], defaults: Mapping[str, str]) -> str:
    """The value that counts.

    Args:
        configs: the group's own.
        defaults: the server's, by the names of group configs.
    """
    value = configs.get(name)
    if value is None:
        value = defaults.get(name)
    return GROUP_CONFIGS[name].default if value is None else value


def group_number(name: str, configs: Mapping[str, str], defaults: Mapping[str, str]) -> int:
    """The value that counts, of a config that is a number."""
    return int(effective_group(name, configs, defaults))


def group_flag(name: str, configs: Mapping[str, str], defaults: Mapping[str, str]) -> bool:
    """The value that counts, of a config that is true or false."""
    return effective_group(name, configs, defaults).strip().lower() == "true"


def _bound(broker_name: str, which: str) -> str:
    group, kind, rest = broker_name.split(".", 2)
    return f"{group}.{kind}.{which}.{rest}"


def _is_duration(text: str) -> bool:
    """Whether a text is a duration such as PT1H30M or P2DT0.5S, and not negative."""
    sign, _, rest = text.upper().partition("P")
    days, _, times = rest.partition("T")
    if sign or not rest or rest.endswith("T"):
        return False
    return _are_parts(days, "D") and _are_parts(times, "HMS")


def _are_parts(text: str, units: str) -> bool:
    """Whether a text is numbers, each with one of the units, in the order of the units."""
    number = ""
    for character in text:
        if character in units:
            units = units[units.index(character) + 1 :]
            whole, dot, part = number.partition(".")
            if not (whole.isascii() and whole.isdigit()) or (dot and character != "S"):
                return False
            if dot and not (part.isascii() and part.isdigit()):
                return False
            number = ""
        else:
            number += character
    return not number


def _sessions(kind: str, protocol: str) -> list[GroupConfig]:
    return [
        GroupConfig(
            name=f"{kind}.session.timeout.ms",
            type=ConfigType.INT,
            default="45000",
            documentation=f"The timeout to detect client failures when using the {protocol} "
            "group protocol.",
            broker_name=f"group.{kind}.session.timeout.ms",
            low=45_000,
            high=60_000,
        ),
        GroupConfig(
            name=f"{kind}.heartbeat.interval.ms",
            type=ConfigType.INT,
            default="5000",
            documentation=f"The heartbeat interval given to the members of a {protocol} group.",
            broker_name=f"group.{kind}.heartbeat.interval.ms",
            low=5_000,
            high=15_000,
        ),
        GroupConfig(
            name=f"{kind}.assignment.interval.ms",
            type=ConfigType.INT,
            default="1000",
            documentation=f"The interval between assignment updates for a {protocol} group.",
            broker_name=f"group.{kind}.assignment.interval.ms",
            least=0,
            low=0,
            high=15_000,
        ),
    ]


_TABLE: Final = (
    *_sessions("consumer", "consumer"),
    *_sessions("share", "share"),
    GroupConfig(
        name=SHARE_LOCK_DURATION,
        type=ConfigType.INT,
        default="30000",
        documentation="The record acquisition lock duration in milliseconds for share groups.",
        broker_name="group.share.record.lock.duration.ms",
        low=15_000,
        high=60_000,
        least=1_000,
    ),
    GroupConfig(
        name=SHARE_DELIVERY_LIMIT,
        type=ConfigType.INT,
        default="5",
        documentation="The maximum number of delivery attempts for a record delivered to a share "
        "group.",
        broker_name="group.share.delivery.count.limit",
        least=2,
        low=2,
        high=10,
    ),
    GroupConfig(
        name=SHARE_LOCKS_MAX,
        type=ConfigType.INT,
        default="2000",
        documentation="Share-group record lock limit per share-partition.",
        broker_name="group.share.partition.max.record.locks",
        least=100,
        low=100,
        high=10_000,
    ),
    GroupConfig(
        name=SHARE_OFFSET_RESET,
        type=ConfigType.STRING,
        default="latest",
        documentation="The strategy to initialize the share-partition start offset: `earliest`, "
        "`latest`, or `by_duration:` with an ISO 8601 duration before now.",
        allowed=("latest", "earliest"),
    ),
    GroupConfig(
        name=SHARE_ISOLATION,
        type=ConfigType.STRING,
        default="read_uncommitted",
        documentation="Whether a share group reads records of open and aborted transactions "
        "(`read_uncommitted`) or not (`read_committed`).",
        allowed=("read_committed", "read_uncommitted"),
    ),
    GroupConfig(
        name=SHARE_RENEW,
        type=ConfigType.BOOLEAN,
        default="true",
        documentation="Whether the renew acknowledge type is enabled for the share group.",
    ),
    *_sessions("streams", "streams"),
    GroupConfig(
        name=STREAMS_STANDBY,
        type=ConfigType.INT,
        default="0",
        documentation="The number of standby replicas for each task.",
        broker_name="group.streams.num.standby.replicas",
        least=0,
        low=0,
        high=2,
        high_name="group.streams.max.standby.replicas",
    ),
    GroupConfig(
        name=STREAMS_INITIAL_DELAY,
        type=ConfigType.INT,
        default="3000",
        documentation="The amount of time the group coordinator will wait for more streams clients "
        "to join a new group before performing the first rebalance.",
        broker_name="group.streams.initial.rebalance.delay.ms",
        least=0,
    ),
)
GROUP_CONFIGS: Final[Mapping[str, GroupConfig]] = {
    config.name: config for config in sorted(_TABLE, key=lambda config: config.name)
}
