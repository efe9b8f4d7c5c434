"""Describing and altering configs: every version, sources and synonyms as Kafka gives them."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.groups.settings import GroupSettings
from penstock.kafka.admin.resources import Source, broker_entries
from penstock.kafka.registry import BY_MODULE
from penstock.model.broker_configs import PARTITIONS_MAX_CONFIG
from penstock.model.group_configs import GROUP_CONFIGS
from penstock.model.topic_configs import CLUSTER_CONFIGS, TOPIC_CONFIGS
from penstock.state.commands import AlterClusterConfigs, SetFeatureLevel
from penstock.state.schema import FEATURE_LEVEL_MAX

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def versions(api: str) -> range:
    entry = BY_MODULE[api]
    return range(entry.versions_min, entry.versions_max + 1)


@pytest.fixture
def describe(call: Any, request_of: Any, part_of: Any) -> Any:
    api = "describe_configs"

    def run(version: int, kind: int, name: str, keys: Any = None, synonyms: bool = True) -> Any:
        resource = part_of(
            api,
            version,
            "DescribeConfigsResource",
            resource_type=kind,
            resource_name=name,
            configuration_keys=keys,
        )
        ask = request_of(
            api,
            version,
            resources=(resource,),
            include_synonyms=synonyms,
            include_documentation=True,
        )
        (result,) = call(api, version, ask).results
        assert (result.resource_type, result.resource_name) == (kind, name)
        return result

    return run


@pytest.fixture
def alter(call: Any, request_of: Any, part_of: Any) -> Any:
    """Alter resources incrementally; (error, message) of each."""
    api = "incremental_alter_configs"

    def run(
        *resources: tuple[int, str, list[tuple[str, int, str | None]]],
        version: int = 1,
        validate_only: bool = False,
    ) -> list[tuple[int, str | None]]:
        ask = request_of(
            api,
            version,
            resources=tuple(
                part_of(
                    api,
                    version,
                    "AlterConfigsResource",
                    resource_type=kind,
                    resource_name=name,
                    configs=tuple(
                        part_of(
                            api,
                            version,
                            "AlterableConfig",
                            name=config,
                            config_operation=operation,
                            value=value,
                        )
                        for config, operation, value in operations
                    ),
                )
                for kind, name, operations in resources
            ),
            validate_only=validate_only,
        )
        answer = call(api, version, ask)
        return [(one.error_code, one.error_message) for one in answer.responses]

    return run


@pytest.fixture
def configs_of(broker: Any) -> Any:
    """A topic's own configs, as they are now."""

    def configs(name: str) -> dict[str, str]:
        return dict(broker.view.topic(name).configs)

    return configs


# -- DescribeConfigs ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("describe_configs"))
def test_a_topics_configs_with_their_sources(
    describe: Any, add_topic: Any, broker: Any, version: int
) -> None:
    add_topic("flights", retention_ms="1000")
    broker.view.cluster_configs.update(
        {"log.retention.hours": "2", "log.cleanup.policy": "compact"}
    )
    result = describe(version, TOPIC, "flights")
    configs = {config.name: config for config in result.configs}
    assert set(configs) == set(TOPIC_CONFIGS)

    def synonyms(name: str) -> list[tuple[str, str, int]]:
        return [(one.name, one.value, one.source) for one in configs[name].synonyms]

    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
    assert synonyms("retention.ms") == [
        ("retention.ms", "1000", 1),
        ("log.retention.hours", "7200000", 3),
        ("log.retention.ms", "604800000", 5),
    ]
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == (
        "compact",
        3,
    )
    assert synonyms("segment.ms") == [("log.roll.ms", "604800000", 5)]
    assert configs["segment.ms"].config_source == 5
    assert not configs["segment.ms"].read_only
    assert not configs["segment.ms"].is_sensitive
    if version >= 3:
        assert configs["retention.ms"].config_type == 5
        assert "deleted" in configs["retention.ms"].documentation


@pytest.mark.parametrize("version", versions("describe_configs"))
def test_only_what_is_asked_for(describe: Any, add_topic: Any, version: int) -> None:
    add_topic("flights")
    result = describe(version, TOPIC, "flights", ("retention.ms", "no.such"), synonyms=False)
    assert [(one.name, one.synonyms) for one in result.configs] == [("retention.ms", ())]


@pytest.mark.parametrize("version", versions("describe_configs"))
def test_the_brokers_configs(describe: Any, broker: Any, version: int) -> None:
    broker.committer.apply(AlterClusterConfigs(set={"log.retention.ms": "5000"}))
    result = describe(version, BROKER, "7")
    configs = {config.name: config for config in result.configs}
    assert configs["num.partitions"].value == "1"
    assert configs["num.partitions"].read_only
    assert configs["num.partitions"].config_source == 4
    assert (configs["log.retention.ms"].value, configs["log.retention.ms"].config_source) == (
        "5000",
        3,
    )
    assert not configs["log.retention.ms"].read_only
    assert configs["message.max.bytes"].config_source == 5
    assert configs["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    only_set = describe(version, BROKER, "")
    assert [config.name for config in only_set.configs] == ["log.retention.ms"]


def test_what_has_no_configs_says_why(describe: Any) -> None:
    assert describe(4, TOPIC, "missing").error_code == 3
    assert describe(4, TOPIC, "a b").error_code == 17
    assert describe(4, BROKER, "8").error_code == 42
    assert describe(4, BROKER_LOGGER, "7").error_code == 42
    assert describe(4, BROKER, "8").error_message


# -- IncrementalAlterConfigs -------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("incremental_alter_configs"))
def test_configs_are_set_deleted_appended_and_subtracted(
    configs_of: Any, alter: Any, add_topic: Any, broker: Any, version: int
) -> None:
    add_topic("flights", retention_ms="1000", segment_ms="5")
    operations = [
        ("retention.ms", DELETE, None),
        ("max.message.bytes", SET, "2000"),
        ("cleanup.policy", APPEND, "compact"),
    ]
    assert alter((TOPIC, "flights", operations), version=version) == [(0, None)]
    assert configs_of("flights") == {
        "segment.ms": "5",
        "max.message.bytes": "2000",
        # Appended to the default, since the topic had no value of its own.
        "cleanup.policy": "delete,compact",
    }
    again = [("cleanup.policy", SUBTRACT, "delete")]
    assert alter((TOPIC, "flights", again), version=version) == [(0, None)]
    assert configs_of("flights")["cleanup.policy"] == "compact"


def test_validating_alters_nothing(
    configs_of: Any, alter: Any, add_topic: Any, broker: Any
) -> None:
    add_topic("flights")
    wanted = (TOPIC, "flights", [("retention.ms", SET, "1")])
    assert alter(wanted, validate_only=True) == [(0, None)]
    assert configs_of("flights") == {}
    assert broker.committer.calls == 0


def test_deleting_what_is_not_set_is_no_change(alter: Any, add_topic: Any, broker: Any) -> None:
    add_topic("flights")
    assert alter((TOPIC, "flights", [("retention.ms", DELETE, None)])) == [(0, None)]
    assert broker.committer.calls == 0


REFUSED = {
    "unknown config": ([("no.such", SET, "1")], 40),
    "bad value": ([("retention.ms", SET, "soon")], 40),
    "bad count": ([("penstock.retention.messages", SET, "-2")], 40),
    "append to a number": ([("retention.ms", APPEND, "1")], 40),
    "append nonsense": ([("cleanup.policy", APPEND, "shred")], 40),
    "no value": ([("retention.ms", SET, None)], 42),
    "unknown operation": ([("retention.ms", 9, "1")], 42),
    "named twice": ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], 42),
    "tiered storage": ([("remote.storage.enable", SET, "true")], 40),
    "contradiction": (
        [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")],
        40,
    ),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_altered_is_refused_and_other_resources_go_on(
    configs_of: Any, alter: Any, add_topic: Any, which: str
) -> None:
    add_topic("refused")
    add_topic("fine")
    operations, expected = REFUSED[which]
    answers = alter((TOPIC, "refused", operations), (TOPIC, "fine", [("segment.ms", SET, "9")]))
    assert [code for code, _ in answers] == [expected, 0]
    assert answers[0][1]
    assert configs_of("refused") == {}
    assert configs_of("fine") == {"segment.ms": "9"}


def test_resources_that_cannot_be_altered(alter: Any, add_topic: Any) -> None:
    add_topic("twice")
    operation = [("log.retention.ms", SET, "1")]
    answers = alter(
        (TOPIC, "missing", operation),
        (TOPIC, "twice", operation),
        (TOPIC, "twice", operation),
        (BROKER, "7", operation),
        (BROKER, "9", operation),
        (BROKER_LOGGER, "7", operation),
    )
    assert [code for code, _ in answers] == [3, 42, 42, 42, 42, 42]


def test_the_clusters_defaults_are_altered_under_broker_config_names(
    alter: Any, broker: Any
) -> None:
    operations = [("log.retention.ms", SET, "77"), ("log.cleanup.policy", APPEND, "compact")]
    assert alter((BROKER, "", operations)) == [(0, None)]
    assert broker.view.cluster_configs == {
        "log.retention.ms": "77",
        "log.cleanup.policy": "delete,compact",
    }
    ((code, message),) = alter((BROKER, "", [("num.network.threads", SET, "8")]))
    assert code == 40
    assert "num.network.threads" in message
    assert "log.retention.ms" in CLUSTER_CONFIGS


def test_a_config_that_sets_no_default_of_topics_is_altered_and_described(
    alter: Any, broker: Any
) -> None:
    def described(*, only_dynamic: bool) -> list[tuple[str, Source]]:
        return [
            (entry.value, entry.source)
            for entry in broker_entries(broker, only_dynamic=only_dynamic)
            if entry.name == PARTITIONS_MAX_CONFIG
        ]

    assert described(only_dynamic=True) == []
    assert described(only_dynamic=False) == [("10000", Source.DEFAULT)]
    for value in ("0", "10001", "many"):
        ((code, _),) = alter((BROKER, "", [(PARTITIONS_MAX_CONFIG, SET, value)]))
        assert code == 40
    assert alter((BROKER, "", [(PARTITIONS_MAX_CONFIG, SET, "20")])) == [(0, None)]
    for only_dynamic in (False, True):
        expected = [("20", Source.DYNAMIC_DEFAULT_BROKER)]
        assert described(only_dynamic=only_dynamic) == expected


# -- groups ------------------------------------------------------------------------------------


@pytest.fixture
def grouped(broker: Any) -> Any:
    """The broker, with a coordinator of the settings below and all features on."""
    broker.groups = SimpleNamespace(settings=GroupSettings(consumer_session_timeout_ms=50_000))
    broker.committer.apply(SetFeatureLevel(level=FEATURE_LEVEL_MAX))
    return broker


def test_a_groups_configs_with_their_sources(describe: Any, alter: Any, grouped: Any) -> None:
    """As a broker of Kafka 4.3.1 answers; the group need not exist."""
    session = "consumer.session.timeout.ms"
    assert alter((GROUP, "g", [("share.isolation.level", SET, "read_committed")])) == [(0, None)]
    result = describe(4, GROUP, "g")
    configs = {config.name: config for config in result.configs}
    assert list(configs) == list(GROUP_CONFIGS)
    shown = {
        name: (
            configs[name].value,
            configs[name].config_source,
            [(one.name, one.value, one.source) for one in configs[name].synonyms],
        )
        for name in ("share.isolation.level", "share.heartbeat.interval.ms", session)
    }
    assert shown == {
        "share.isolation.level": (
            "read_committed",
            8,
            [
                ("share.isolation.level", "read_committed", 8),
                ("share.isolation.level", "read_uncommitted", 5),
            ],
        ),
        "share.heartbeat.interval.ms": (
            "5000",
            5,
            [("group.share.heartbeat.interval.ms", "5000", 5)],
        ),
        # Of the server's settings.
        session: ("50000", 4, [(f"group.{session}", "50000", 4)]),
    }
    nameless = describe(4, GROUP, "")
    assert (nameless.error_code, nameless.error_message) == (42, "Group name must not be empty")


def test_configs_of_groups_are_set_deleted_and_listed(
    alter: Any, grouped: Any, call: Any, request_of: Any
) -> None:
    name = "consumer.heartbeat.interval.ms"
    assert alter((GROUP, "g", [(name, SET, "6000")]), (GROUP, "h", [(name, SET, "7000")])) == [
        (0, None),
        (0, None),
    ]
    assert grouped.view.group_configs == {"g": {name: "6000"}, "h": {name: "7000"}}
    api = "list_config_resources"

    def listed(*kinds: int) -> list[tuple[str, int]]:
        answer = call(api, 1, request_of(api, 1, resource_types=kinds))
        return [(one.resource_name, one.resource_type) for one in answer.config_resources]

    assert listed(GROUP) == [("g", GROUP), ("h", GROUP)]
    assert alter((GROUP, "g", [(name, DELETE, None)])) == [(0, None)]
    assert listed(GROUP) == [("h", GROUP)]
    assert ("h", GROUP) in listed()


@pytest.mark.parametrize(
    ("group_id", "operation", "expected"),
    [
        ("g", ("nope", SET, "1"), (40, "Unknown group config name: nope")),
        (
            "g",
            ("consumer.session.timeout.ms", APPEND, "1"),
            (
                40,
                "Can't APPEND to key consumer.session.timeout.ms because its type is not LIST.",
            ),
        ),
        ("", ("share.isolation.level", SET, "x"), (42, "Default group resources are not allowed.")),
    ],
)
def test_configs_of_groups_that_are_refused(
    alter: Any, grouped: Any, group_id: str, operation: Any, expected: Any
) -> None:
    assert alter((GROUP, group_id, [operation])) == [expected]
    assert grouped.view.group_configs == {}


# -- AlterConfigs ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("alter_configs"))
def test_altering_replaces_all_configs(
    configs_of: Any, call: Any, request_of: Any, part_of: Any, add_topic: Any, version: int
) -> None:
    api = "alter_configs"
    add_topic("flights", retention_ms="1000", segment_ms="5")

    def ask(*configs: tuple[str, str | None], validate_only: bool = False) -> int:
        resource = part_of(
            api,
            version,
            "AlterConfigsResource",
            resource_type=TOPIC,
            resource_name="flights",
            configs=tuple(
                part_of(api, version, "AlterableConfig", name=name, value=value)
                for name, value in configs
            ),
        )
        request = request_of(api, version, resources=(resource,), validate_only=validate_only)
        (answer,) = call(api, version, request).responses
        code: int = answer.error_code
        return code

    assert ask(("segment.ms", "6"), ("flush.ms", "1"), validate_only=True) == 0
    assert configs_of("flights") == {"retention.ms": "1000", "segment.ms": "5"}
    assert ask(("segment.ms", "6"), ("flush.ms", "1")) == 0
    assert configs_of("flights") == {"segment.ms": "6", "flush.ms": "1"}
    assert ask(("segment.ms", None)) == 42
    assert ask(("segment.ms", "x")) == 40
    assert configs_of("flights") == {"segment.ms": "6", "flush.ms": "1"}
    assert ask() == 0
    assert configs_of("flights") == {}


# -- ListConfigResources -----------------------------------------------------------------------


def test_resources_with_configs(call: Any, request_of: Any, add_topic: Any) -> None:
    api = "list_config_resources"
    add_topic("b")
    add_topic("a")

    def ask(*types: int) -> Any:
        answer = call(api, 1, request_of(api, 1, resource_types=types))
        return answer.error_code, [
            (one.resource_type, one.resource_name) for one in answer.config_resources
        ]

    everything = [(TOPIC, "a"), (TOPIC, "b"), (BROKER, "7")]
    assert ask() == (0, everything)
    assert ask(BROKER) == (0, [(BROKER, "7")])
    assert ask(BROKER_LOGGER) == (0, [])
    assert ask(99) == (35, [])
    assert call(api, 0, request_of(api, 0)).config_resources == ()
