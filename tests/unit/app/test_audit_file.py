"""The files of the audit log: lines, sizes, and what can't be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.audit_file import AuditFile, line
from penstock.security.acl import Operation, ResourceType
from penstock.security.audit import Audit, AuditEntry
from penstock.system.heard import Cause, swallowed_counts

INJECTED = 'x","allowed":true}\n{"time":"forged"}\r\n\x1b[2J\x85\u2028\x00'


def entry(**changes: Any) -> AuditEntry:
    values: dict[str, Any] = {
        "time_ms": 1_700_000_000_000,
        "port": "kafka",
        "principal": "User:alice",
        "host": "10.0.0.1",
        "call": "DeleteTopics",
        "client_id": "c",
        "operation": "DELETE",
        "resource_type": "TOPIC",
        "resource": "t",
        "allowed": False,
    }
    return AuditEntry(**(values | changes))


def audit_of(count: int) -> Audit:
    audit = Audit(now_ms=lambda: 1_700_000_000_000, sample_every=1)
    for number in range(count):
        audit.decided(
            "http",
            "User:alice",
            "10.0.0.1",
            "POST /v1/keys",
            "",
            Operation.ALTER,
            ResourceType.CLUSTER,
            f"resource-{number:05}",
            allowed=True,
        )
    return audit


@given(
    text=st.one_of(st.just(INJECTED), st.text()), name=st.sampled_from(["resource", "client_id"])
)
def test_no_name_makes_a_line_of_its_own(text: str, name: str) -> None:
    made = line(entry(**{name: text}))
    assert made.endswith(b"}\n")
    assert all(32 <= byte < 127 for byte in made[:-1])
    assert len(made.decode().splitlines()) == 1
    found = json.loads(made)
    assert found[name] == text
    assert found["allowed"] is False
    assert found["time"] == "2023-11-14T22:13:20.000+00:00"


def test_principals_and_calls_are_escaped_as_well() -> None:
    made = line(entry(principal=INJECTED, call=INJECTED, host=INJECTED))
    assert len(made.decode().splitlines()) == 1
    assert json.loads(made)["principal"] == INJECTED


def test_files_follow_one_another_at_a_size(tmp_path: Path) -> None:
    path = tmp_path / "audit" / "log"
    audit = audit_of(0)
    file = AuditFile(audit, path, bytes_max=1000, files_max=3)
    for number in range(20):
        audit.refused("http", "10.0.0.1", f"call-{number:02}")
        file.write()
    file.close()
    found = sorted(each.name for each in path.parent.iterdir())
    assert found == ["log", "log.1", "log.2"]
    assert all(each.stat().st_size <= 1000 for each in path.parent.iterdir())
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in path.parent.iterdir())
    ordered = [path.with_name("log.2"), path.with_name("log.1"), path]
    lines = [json.loads(text) for each in ordered for text in each.read_text().splitlines()]
    calls = [each["call"] for each in lines]
    assert calls == [f"call-{number:02}" for number in range(20 - len(calls), 20)]
    assert (file.written_count, audit.lost_count) == (20, 0)


def test_a_single_file_begins_anew_at_its_size(tmp_path: Path) -> None:
    audit = audit_of(0)
    file = AuditFile(audit, tmp_path / "log", bytes_max=400, files_max=1)
    for number in range(9):
        audit.refused("http", "10.0.0.1", f"call-{number}")
        file.write()
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
    assert "call-8" in (tmp_path / "log").read_text()


def test_a_start_goes_on_with_the_file(tmp_path: Path) -> None:
    for _ in range(2):
        AuditFile(audit_of(1), tmp_path / "log", bytes_max=1 << 20, files_max=2).close()
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_what_can_not_be_written_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    audit = audit_of(3)
    file = AuditFile(audit, folder / "log", bytes_max=1, files_max=2)
    file.write()
    # The file that would follow can't be made: a folder has its name.
    (folder / "log").unlink()
    (folder / "log.1").mkdir()
    (folder / "log.1" / "x").touch()
    (folder / "log").mkdir()
    before = swallowed_counts()[Cause.AUDIT]
    for _ in range(5):
        audit.refused("http", "10.0.0.1", "call")
    file.write()
    assert audit.lost_count == 5
    assert swallowed_counts()[Cause.AUDIT] == before + 1
    # Afterwards it goes on.
    (folder / "log").rmdir()
    audit.refused("http", "10.0.0.1", "later")
    file.close()
    assert "later" in (folder / "log").read_text()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="log"):
        AuditFile(audit_of(1), tmp_path / "log", bytes_max=1 << 20, files_max=2)
