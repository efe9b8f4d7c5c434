"""Files of --command-config: what is read, what is refused, and what librdkafka gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.client.security import ClientSecurity, read_security
from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.security.listener import Protocol

SECRET = "a secret = of alice's"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "client.properties"


def written(path: Path, *lines: str, mode: int = 0o600) -> Path:
    path.touch(mode=mode)
    path.write_text("\n".join(lines))
    return path


def test_a_file_is_read_as_kafka_s_tools_do(path: Path) -> None:
    found = read_security(
        written(
            path,
            "# of alice",
            "",
            "security.protocol = sasl_ssl",
            "ssl.ca.location=/etc/ca.pem",
            "sasl.mechanism=SCRAM-SHA-512",
            "sasl.username=alice",
            f"sasl.password={SECRET}",
        )
    )
    assert found == ClientSecurity(
        protocol=Protocol.SASL_SSL,
        ca="/etc/ca.pem",
        mechanism="SCRAM-SHA-512",
        user="alice",
        password=SECRET,
    )
    assert SECRET not in repr(found)
    assert found.librdkafka() == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": SECRET,
    }


def test_a_listener_of_plaintext_needs_no_settings(path: Path) -> None:
    assert read_security(written(path)).librdkafka() == {}


def test_a_certificate_may_hold_its_key(path: Path) -> None:
    found = read_security(written(path, "security.protocol=SSL", "ssl.certificate.location=/c.pem"))
    assert found.librdkafka()["ssl.key.location"] == "/c.pem"


@pytest.mark.parametrize(
    "lines",
    [
        ["security.protocol=TLS"],
        ["security.protocol"],
        ["sasl.passwort=x"],
        ["security.protocol=SASL_SSL", "sasl.username=a", "sasl.password=b"],
        ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN"],
        ["security.protocol=SASL_SSL", "sasl.mechanism=GSSAPI", "sasl.username=a"],
        ["security.protocol=SSL", "ssl.endpoint.identification.algorithm=maybe"],
    ],
)
def test_what_can_not_be_meant_is_refused_without_its_secrets(path: Path, lines: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        read_security(written(path, *lines, f"sasl.password={SECRET}"))
    assert SECRET not in str(raised.value)


def test_a_password_that_every_user_may_read_is_refused(path: Path) -> None:
    lines = ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=a"]
    written(path, *lines, f"sasl.password={SECRET}")
    path.chmod(0o644)
    with pytest.raises(InvalidRequestError, match="its mode is 644"):
        read_security(path)


def test_a_file_that_is_not_there_is_said(path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"client\.properties"):
        read_security(path)
