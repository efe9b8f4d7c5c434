"""Places of backups: what is below an allowed one, by any spelling, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.app.http.callers import DeniedError
from penstock.app.http.targets import Targets

KEY = {"AWS_ACCESS_KEY_ID": "key"}


def allowed(prefixes: str, location: str, **changes: object) -> bool:
    options: dict[str, object] = {
        "takes_any": False,
        "instance_credentials": False,
        "environment": KEY,
    }
    targets = Targets(prefixes, **(options | changes))  # type: ignore[arg-type]
    try:
        targets.check("back up", location)
    except DeniedError as error:
        assert not location or location not in str(error)
        return False
    return True


def test_what_is_below_a_path_is_allowed(tmp_path: Path) -> None:
    allow = str(tmp_path / "copies")
    for location in (allow, f"{allow}/", f"{allow}/a/b", f"file://{allow}/a", f"{allow}/a/../b"):
        assert allowed(allow, location), location
    for location in (
        f"{allow}2",
        f"{allow}/../other",
        f"file://{allow}/../other",
        f"file://{allow}/%2e%2e/other",
        f"file://host{allow}",
        "/",
        "",
        "/etc",
    ):
        assert not allowed(allow, location), location


def test_a_link_that_leads_out_is_followed(tmp_path: Path) -> None:
    allow = tmp_path / "copies"
    allow.mkdir()
    (allow / "out").symlink_to(tmp_path)
    assert not allowed(str(allow), str(allow / "out" / "x"))
    assert allowed(str(allow), str(allow / "in" / "x"))


def test_what_is_below_a_url_is_allowed() -> None:
    allow = "s3://bucket/copies, s3://other"
    for location in (
        "s3://bucket/copies",
        "s3://bucket/copies/",
        "s3://bucket/copies/a",
        "s3://other",
    ):
        assert allowed(allow, location), location
    for location in (
        "s3://bucket",
        "s3://bucket/copies2",
        "s3://bucket/copies/../x",
        "s3://bucket/./copies",
        "s3://bucket/copies/%2e%2e/x",
        "s3://bucket/copies?x=1",
        "s3://bucket/copies#x",
        "s3://user:secret@bucket/copies",
        "s3://bucket.evil.example/copies",
        "s3://bucket:1/copies",
        "s3://bucket\\copies",
        "gs://bucket/copies",
        "http://bucket/copies",
        "http://169.254.169.254/latest/meta-data",
        "s3://[bad",
        "s3://bücket/copies",
        "s3://bucket/copies\n",
    ):
        assert not allowed(allow, location), location


def test_without_prefixes_an_authorizer_allows_nothing() -> None:
    assert not allowed("", "/tmp/x")
    assert allowed("", "/tmp/x", takes_any=True)
    assert not allowed("/copies", "/tmp/x", takes_any=True)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_the_credentials_of_the_instance_are_used_only_if_the_setting_says_so(scheme: str) -> None:
    place = f"{scheme}://bucket/x"
    assert not allowed(place, place, environment={})
    assert allowed(place, place, environment={}, instance_credentials=True)
    assert allowed("/copies", "/copies/x", environment={})
