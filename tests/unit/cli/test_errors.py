"""Error codes of Kafka as lines of a command."""

import sys

import pytest
from confluent_kafka import KafkaError

from penstock.cli.client.errors import RefusedError, check, translated
from penstock.cli.client.librdkafka import Log, confluent_kafka
from penstock.kafka.errors import ErrorCode
from penstock.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)


def test_an_error_of_the_servers_own_names_the_log() -> None:
    with pytest.raises(RefusedError) as raised:
        check("delete group", "g", ErrorCode.UNKNOWN_SERVER_ERROR)
    assert "UNKNOWN_SERVER_ERROR: the server's log has the numbers" in str(raised.value)


def test_other_errors_are_named_alone() -> None:
    with pytest.raises(RefusedError) as raised:
        check("create topic", "t", ErrorCode.POLICY_VIOLATION, "too many")
    assert "log" not in str(raised.value)
    with pytest.raises(RetryableError, match="COORDINATOR_NOT_AVAILABLE"):
        check("delete group", "g", ErrorCode.COORDINATOR_NOT_AVAILABLE)
    check("delete group", "g", 0)


@pytest.mark.parametrize(
    ("code", "reason", "kind", "said"),
    [
        (KafkaError.NON_EMPTY_GROUP, None, RefusedError, "not empty (NON_EMPTY_GROUP)"),
        (KafkaError.INVALID_CONFIG, "no such name", RefusedError, "no such name (INVALID_CONFIG)"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, None, RefusedError, "there is no such topic"),
        (KafkaError.UNKNOWN, None, RefusedError, "the server's log has the numbers"),
        (KafkaError.NOT_COORDINATOR, None, RetryableError, "NOT_COORDINATOR"),
        (KafkaError._TIMED_OUT, None, RetryableError, "Timed out: a:1: Connection refused"),
        (KafkaError._BAD_MSG, None, CorruptDataError, "_BAD_MSG"),
        (KafkaError._INVALID_ARG, "too long", InvalidRequestError, "too long"),
        (KafkaError._STATE, None, PenstockError, "_STATE"),
    ],
)
def test_an_error_of_librdkafka_is_one_of_ours(
    code: int, reason: str | None, kind: type[PenstockError], said: str
) -> None:
    error = KafkaError(code) if reason is None else KafkaError(code, reason)
    found = translated(error, "delete group", "g", failure="a:1: Connection refused")
    assert type(found) is kind
    assert str(found).startswith("delete group g: ")
    assert said in str(found)
    assert "Broker:" not in str(found)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (
            (
                "[thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 "
                "failed: Connection refused (after 0ms in state CONNECT)"
            ),
            "127.0.0.1:1: Connection refused",
        ),
        (
            (
                "[thrd:no.such:1/7]: no.such:1/7: Failed to resolve 'no.such:1': Name or service "
                "not known (after 0ms in state CONNECT)"
            ),
            "no.such:1: Failed to resolve 'no.such:1': Name or service not known",
        ),
        (
            (
                "[thrd:GroupCoordinator]: GroupCoordinator: 127.0.0.1:1: Disconnected (after 9ms "
                "in state UP)"
            ),
            "127.0.0.1:1: Disconnected",
        ),
        ("something else", "something else"),
    ],
)
def test_why_a_connection_failed_is_kept_and_not_printed(
    text: str, failure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log()
    log.log(20, "%s [%s] %s", "SESSTERM", "rdkafka#1", "of no interest")
    assert (log.failure, log.failure_count) == ("", 0)
    log.log(40, "%s [%s] %s", "FAIL", "rdkafka#1", text)
    assert (log.failure, log.failure_count) == (failure, 1)
    assert capsys.readouterr() == ("", "")


def test_where_there_is_no_librdkafka_it_is_said_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(NotFoundError, match="pip install confluent-kafka"):
        confluent_kafka()
