"""Contexts of TLS: which files are taken, and that they are followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.security.tls.contexts import TlsContexts, TlsSettings
from support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_key_that_every_user_may_use_is_refused(authority: Authority) -> None:
    path = authority.sign("server")
    path.chmod(0o604)
    with pytest.raises(InvalidRequestError, match="its mode is 604"):
        TlsContexts(TlsSettings(certificate=path))


@pytest.mark.parametrize("text", ["", "half a file"])
def test_what_is_not_a_certificate_is_refused(authority: Authority, text: str) -> None:
    path = authority.sign("server")
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=r"server\.pem"):
        TlsContexts(TlsSettings(certificate=path))


def test_the_key_must_be_the_certificate_s(authority: Authority) -> None:
    with pytest.raises(InvalidRequestError, match=r"server\.pem"):
        TlsContexts(TlsSettings(certificate=authority.sign("server"), key=authority.sign("other")))


def test_a_file_that_is_not_there_is_said(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"absent\.pem"):
        TlsContexts(TlsSettings(certificate=tmp_path / "absent.pem"))
    with pytest.raises(NotFoundError, match=r"ca2\.pem"):
        TlsContexts(
            TlsSettings(
                certificate=authority.sign("server"),
                ca=tmp_path / "ca2.pem",
                client_auth="required",
            )
        )


def test_files_are_followed_as_soon_as_they_can_be_loaded(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    path = authority.sign("server")
    held = TlsContexts(TlsSettings(certificate=path))
    first = held.current
    held.look()
    assert held.current is first
    whole = authority.sign("other").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    held.look()
    assert held.current is first
    assert "keeping the certificate that is in use" in caplog.text
    path.write_bytes(whole)
    held.look()
    assert held.current is not first
    second = held.current
    path.unlink()
    held.look()
    assert held.current is second
    assert held.loaded_count == 2
