"""Configs of groups: names, values and messages as a broker of Kafka 4.3.1 has them."""

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.model.group_configs import (
    GROUP_CONFIGS,
    effective_group,
    group_number,
    validate_group,
)

NAMES = """
consumer.assignment.interval.ms consumer.heartbeat.interval.ms consumer.session.timeout.ms
share.assignment.interval.ms share.auto.offset.reset share.delivery.count.limit
share.heartbeat.interval.ms share.isolation.level share.partition.max.record.locks
share.record.lock.duration.ms share.renew.acknowledge.enable share.session.timeout.ms
streams.assignment.interval.ms streams.heartbeat.interval.ms streams.initial.rebalance.delay.ms
streams.num.standby.replicas streams.session.timeout.ms
"""


def test_the_names_are_kafkas() -> None:
    assert list(GROUP_CONFIGS) == NAMES.split()


@pytest.mark.parametrize("name", list(GROUP_CONFIGS))
def test_each_default_is_a_value_that_may_be_set(name: str) -> None:
    assert GROUP_CONFIGS[name].problem(GROUP_CONFIGS[name].default) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.auto.offset.reset", "earliest"),
        ("share.auto.offset.reset", "by_duration:PT1H30M"),
        ("share.auto.offset.reset", "by_duration:P2DT0.5S"),
        ("share.isolation.level", "read_committed"),
        ("share.renew.acknowledge.enable", "FALSE"),
        ("streams.num.standby.replicas", "2"),
        ("consumer.session.timeout.ms", "60000"),
        ("streams.initial.rebalance.delay.ms", "0"),
    ],
)
def test_such_a_value_is_taken(name: str, value: str) -> None:
    assert GROUP_CONFIGS[name].problem(value) == ""


FAULTS = """
consumer.session.timeout.ms 0 ! Value must be at least 1
consumer.session.timeout.ms 44999 must be greater than or equal to \
group.consumer.min.session.timeout.ms
share.partition.max.record.locks 10001 must be less than or equal to \
group.share.max.partition.max.record.locks
streams.num.standby.replicas 3 must be less than or equal to group.streams.max.standby.replicas
consumer.heartbeat.interval.ms x ! Not a number of type INT
share.isolation.level x ! String must be one of: read_committed, read_uncommitted
share.renew.acknowledge.enable x ! Expected value to be either true or false
"""


@pytest.mark.parametrize("line", FAULTS.strip().splitlines())
def test_faults_are_worded_as_kafka_words_them(line: str) -> None:
    name, value, expected = line.split(" ", 2)
    if expected.startswith("! "):
        expected = f"Invalid value {value} for configuration {name}: {expected[2:]}"
    else:
        expected = f"{name} {expected}"
    assert refusal(**{name: value}) == expected


def test_an_unknown_name_is_refused() -> None:
    assert refusal(nope="1") == "Unknown group config name: nope"


@pytest.mark.parametrize(
    "value", ["", "P", "PT", "PT1", "1H", "by_duration:", "PT1S2M", "-PT1S", "PT1.5M", "P1H"]
)
def test_such_a_duration_is_none(value: str) -> None:
    for text in (value, f"by_duration:{value}"):
        assert GROUP_CONFIGS["share.auto.offset.reset"].problem(text) != ""


def refusal(**configs: str) -> str:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    with pytest.raises(InvalidRequestError) as raised:
        validate_group(named, {})
    return raised.value.detail


def test_a_sessions_time_out_is_longer_than_the_heartbeats_interval() -> None:
    validate_group({"consumer.session.timeout.ms": "45000"}, {})
    with pytest.raises(InvalidRequestError) as raised:
        validate_group(
            {"consumer.heartbeat.interval.ms": "7000"}, {"consumer.session.timeout.ms": "6000"}
        )
    assert raised.value.detail == (
        "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
    )


def test_a_groups_own_value_counts_before_the_servers() -> None:
    name = "consumer.session.timeout.ms"
    assert effective_group(name, {}, {}) == "45000"
    assert effective_group(name, {}, {name: "6000"}) == "6000"
    assert group_number(name, {name: "50000"}, {name: "6000"}) == 50_000


def test_a_long_value_is_refused() -> None:
    assert refusal(share_auto_offset_reset=f"by_duration:PT{'1' * 200}S") == (
        "share.auto.offset.reset has a value of 215 characters"
    )
