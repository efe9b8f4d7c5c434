"""Error codes of Kafka as lines of a command."""

import pytest

from penstock.cli.client.errors import RefusedError, check
from penstock.kafka.errors import ErrorCode
from penstock.model.errors import RetryableError


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
