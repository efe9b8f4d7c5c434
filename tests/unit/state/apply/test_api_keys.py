"""Commands about API keys: what they change, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.security.api_key import ApiKey, digest_of, new_key
from penstock.state.answers import Done, Refusal, Refused
from penstock.state.changes import ApiKeyChanged
from penstock.state.levels import level_needed
from penstock.state.pipeline_commands import OpenJob
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.schema import SECURITY_LEVEL
from penstock.state.security_commands import DeleteApiKey, SaveApiKey
from unit.state.orders import TestClock, open_order

KEY_ID, SECRET, TEXT = new_key(b"12345678", b"s" * 32)
KEY = ApiKey(
    key_id=KEY_ID, digest=digest_of(SECRET), principal="User:alice", note="nightly", expires_ms=9
)


def test_keys_are_kept_and_forgotten(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    view = StateView()
    other = msgspec.structs.replace(KEY, key_id="0" * 16, expires_ms=0)
    for key in (KEY, other):
        applied = order.append([SaveApiKey(key=key)])
        assert applied.outcome.answers == [Done()]
        view.apply(applied.outcome.changes)
    assert view.api_keys == {KEY_ID: KEY, "0" * 16: other}
    view.apply(order.append([DeleteApiKey(key_id=KEY_ID)]).outcome.changes)
    assert view.api_keys == {"0" * 16: other}
    queries = Queries(tmp_path / "metadata.sqlite")
    assert StateView.load(queries).api_keys == view.api_keys
    queries.close()
    order.close()


def test_no_key_takes_the_id_of_another(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    order.append([SaveApiKey(key=KEY)])
    thief = msgspec.structs.replace(KEY, digest=bytes(32), principal="User:mallory")
    applied = order.append([SaveApiKey(key=thief)])
    assert _reason(applied) is Refusal.MALFORMED
    assert not any(isinstance(one, ApiKeyChanged) for one in applied.outcome.changes)
    queries = Queries(tmp_path / "metadata.sqlite")
    assert queries.api_keys() == [KEY]
    queries.close()
    order.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"key_id": "0" * 15},
        {"key_id": "A" * 16},
        {"digest": bytes(31)},
        {"principal": "alice"},
        {"principal": "User:"},
        {"principal": ":alice"},
        {"principal": "User:" + "a" * 251},
        {"note": "n" * 201},
        {"expires_ms": -1},
        {"expires_ms": 1 << 53},
    ],
)
def test_what_is_not_valid_changes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    applied = order.append([SaveApiKey(key=msgspec.structs.replace(KEY, **changes))])
    assert _reason(applied) is Refusal.MALFORMED
    assert not any(isinstance(one, ApiKeyChanged) for one in applied.outcome.changes)
    order.close()


def test_a_key_that_is_not_there_is_not_deleted(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    applied = order.append([DeleteApiKey(key_id=KEY_ID)])
    assert _reason(applied) is Refusal.UNKNOWN_CREDENTIAL
    order.close()


def test_a_job_keeps_who_opened_it(tmp_path: Path) -> None:
    order = open_order(tmp_path, TestClock(5_000))
    opened = OpenJob(kind="read", name="n", lease_ms=1, age_max_ms=1, principal="User:alice")
    order.append([opened, msgspec.structs.replace(opened, principal="")])
    queries = Queries(tmp_path / "metadata.sqlite")
    assert [job.principal for job in queries.pipeline_jobs()] == ["User:alice", ""]
    queries.close()
    order.close()


def test_a_job_of_a_principal_needs_the_level_that_knows_principals() -> None:
    opened = OpenJob(kind="read", name="n", lease_ms=1, age_max_ms=1, principal="User:alice")
    assert level_needed(opened) == SECURITY_LEVEL
    assert level_needed(msgspec.structs.replace(opened, principal="")) < SECURITY_LEVEL


def _reason(applied: Any) -> Refusal:
    (answer,) = applied.outcome.answers
    assert isinstance(answer, Refused)
    return answer.reason
