"""The small parts: the banner, what instruments count, how settings are handed on."""

import dataclasses

import pytest

from penstock.app.banner import Introduction, ListenerShown, banner
from penstock.app.instruments import KafkaInstruments
from penstock.app.limits import group_settings, kafka_settings, log_limits
from penstock.config.about import MIB
from penstock.config.addresses import Address
from penstock.config.settings import ServerSettings
from penstock.kafka.net.unserved import Unserved
from penstock.kafka.registry import APIS
from penstock.observability.metrics import Metrics


@pytest.mark.parametrize(("port", "shown"), [(9092, False), (19092, True)])
def test_the_banner_shows_commands_that_reach_this_server(port: int, shown: bool) -> None:
    server = Introduction(
        pid=1,
        advertised=Address("127.0.0.1", port),
        http=None,
        data="/d",
        cluster_id="c",
        node_id=1,
    )
    text = banner(server, command="penstock")
    assert ("--server 127.0.0.1:19092" in text) == shown
    assert "penstock topic create greetings" in text
    assert all(len(line) < 100 for line in text.splitlines())


def test_the_banner_names_every_listener() -> None:
    server = Introduction(
        pid=1,
        advertised=Address("log.example", 9093),
        http=None,
        data="/d",
        cluster_id="c",
        node_id=1,
        listeners=(
            ListenerShown("CLIENTS", "SASL_SSL", Address("log.example", 9093)),
            ListenerShown("OPERATORS", "PLAINTEXT", Address("127.0.0.1", 9094)),
        ),
    )
    text = banner(server, command="penstock")
    assert (
        "Kafka clients  log.example:9093 (CLIENTS, SASL_SSL), 127.0.0.1:9094 (OPERATORS, PLAINTEXT)"
        in text
    )
    assert "topic create greetings --partitions 3 --server 127.0.0.1:9094\n" in text


def test_every_event_and_stage_of_the_kafka_face_has_a_metric() -> None:
    metrics = Metrics()
    instruments = KafkaInstruments(metrics)
    assert metrics.counts["penstock_unserved_requests_total"] == dict.fromkeys(Unserved, 0)
    for api in APIS.values():
        instruments.observe(api.stage, 0.001)
    for event in (
        "connections_opened",
        "connections_closed",
        "reply_bytes",
        "malformed_requests",
        "refused:connections_max",
        "ended:stalled",
        *(f"unserved:{kind}" for kind in Unserved),
    ):
        instruments.count(event, 2)
    instruments.observe("parse:Fetch", 0.1)
    assert metrics.counts["penstock_reply_bytes_total"][""] == 2
    assert set(metrics.counts["penstock_unserved_requests_total"].values()) == {2}
    assert metrics.histograms["penstock_ack_duration_seconds"][""].count == 1
    assert metrics.histograms["penstock_fetch_duration_seconds"][""].count == 1


def test_a_settings_change_reaches_the_package_that_acts_on_it() -> None:
    settings = ServerSettings(
        segment_bytes=5 * MIB,
        connections_max=7,
        stall_timeout_ms=1500,
        offsets_retention_minutes=2,
        wal_file_bytes=2 * MIB,
    )
    assert log_limits(settings).segment_bytes == 5 * MIB
    assert log_limits(settings).frame_bytes_max <= 2 * MIB
    assert kafka_settings(settings).connections_max == 7
    assert kafka_settings(settings).stall_timeout_s == 1.5
    assert group_settings(settings).offsets_retention_ms == 120_000


def test_limits_of_the_log_that_are_no_settings_keep_the_logs_own_defaults() -> None:
    limits = log_limits(ServerSettings())
    settings = {*ServerSettings.__struct_fields__, "frame_bytes_max"}
    own = {
        field.name: field.default
        for field in dataclasses.fields(limits)
        if field.name not in settings
    }
    assert {name: getattr(limits, name) for name in own} == own


def test_every_setting_of_the_log_is_handed_on() -> None:
    fields = {field.name for field in dataclasses.fields(log_limits(ServerSettings()))}
    for name in fields & set(ServerSettings.__struct_fields__):
        value = "object" if name == "durability" else getattr(ServerSettings(), name) + 1
        assert getattr(log_limits(ServerSettings(**{name: value})), name) == value
