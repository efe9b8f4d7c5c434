"""The cluster's secret in a file: two are taken while it changes, and no half file replaces it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.app.secret_file import SecretFile, cluster_secret
from penstock.model.errors import InvalidRequestError
from penstock.peers.secret import ClusterSecret
from penstock.pipeline.secret import find_secret
from penstock.system.heard import Cause, swallowed_counts

OLD, NEW = "the-old-secret-of-all", "the-new-secret-of-all"


def taken(secret: ClusterSecret) -> list[bool]:
    return [secret.accepts(f"Bearer {text}") for text in (OLD, NEW)]


def test_a_secret_changes_in_three_steps(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{OLD}\n")
    file = SecretFile(path)
    secret = file.secret
    assert (taken(secret), secret.text) == ([True, False], OLD)
    for text, both, sent in (
        (f"{OLD}\n{NEW}\n", [True, True], OLD),
        (f"{NEW}\n{OLD}\n", [True, True], NEW),
        (f"{NEW}\n", [False, True], NEW),
    ):
        path.write_text(text)
        file.look()
        assert (taken(secret), secret.text) == (both, sent)
        assert secret.header == f"Bearer {sent}"
        found = find_secret(str(path))
        assert found is not None
        assert found.text == sent


@pytest.mark.parametrize("text", ["", "\n \n", "short", f"{OLD}\n{NEW}\nthird-of-three-secrets\n"])
def test_what_is_no_secret_replaces_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(OLD)
    file = SecretFile(path)
    before = swallowed_counts()[Cause.LOAD_SECRET]
    path.write_text(text)
    file.look()
    path.unlink()
    file.look()
    assert taken(file.secret) == [True, False]
    assert swallowed_counts()[Cause.LOAD_SECRET] == before + 2
    path.write_text(NEW)
    file.look()
    assert taken(file.secret) == [False, True]
    with pytest.raises(InvalidRequestError):
        SecretFile(tmp_path / "nothing")


def test_no_secret_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(OLD)
    assert OLD not in repr(SecretFile(path).secret)
    assert cluster_secret(None, "") is None
    assert cluster_secret(None, OLD) is not None
