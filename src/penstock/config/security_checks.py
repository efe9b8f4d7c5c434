"""Checks the settings of TLS and SASL against one another. Pure."""

from itertools import pairwise
from typing import Final

from penstock.config.addresses import parse_address
from penstock.config.listeners import ListenerSettings, listeners
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError
from penstock.security.listener import Protocol
from penstock.security.tls.principal_rules import parse_rules

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
"""Algorithms with a public key. With a shared secret, the server could make tokens itself."""
_SENDS_SECRETS: Final = frozenset(("PLAIN", "OAUTHBEARER"))


def mechanisms(settings: ServerSettings) -> tuple[str, ...]:
    """Return the mechanisms that are enabled, in the order in which they are given.

    Raises:
        InvalidRequestError: the setting names others.
    """
    return _names(settings.sasl_enabled_mechanisms, MECHANISMS, setting="sasl_enabled_mechanisms")


def algorithms(settings: ServerSettings) -> tuple[str, ...]:
    """Return the algorithms by which tokens may be signed.

    Raises:
        InvalidRequestError: the setting names others.
    """
    return _names(
        settings.sasl_oauthbearer_algorithms, ALGORITHMS, setting="sasl_oauthbearer_algorithms"
    )


def audiences(settings: ServerSettings) -> tuple[str, ...]:
    """Return the audiences of which a token must name one."""
    text = settings.sasl_oauthbearer_expected_audience
    return tuple(part.strip() for part in text.split(",") if part.strip())


def check_security(settings: ServerSettings) -> None:
    """Check the listeners and what they need.

    Raises:
        InvalidRequestError: names the settings that contradict one another, or what is missing.
    """
    found = listeners(settings)
    parse_rules(settings.ssl_principal_mapping_rules)
    enabled = mechanisms(settings)
    algorithms(settings)
    for listener in found:
        if listener.protocol.has_tls and not settings.ssl_certificate:
            raise _refused(
                "ssl_certificate",
                f"listener {listener.name} speaks {listener.protocol} and has no certificate",
                "name its file",
            )
        if listener.protocol.has_sasl and not enabled:
            raise _refused(
                "sasl_enabled_mechanisms",
                f"listener {listener.name} speaks {listener.protocol}, and no mechanism is enabled",
                "for example SCRAM-SHA-512",
            )
    if any(listener.protocol is Protocol.SSL for listener in found):
        _check_client_certificates(settings)
    has_sasl = any(listener.protocol.has_sasl for listener in found)
    if "OAUTHBEARER" in enabled and (has_sasl or settings.sasl_oauthbearer_jwks):
        _check_tokens(settings)
    _check_ports(found, settings)


def security_warnings(settings: ServerSettings) -> list[str]:
    """Return what is allowed and gives secrets away, one sentence each."""
    secrets = [name for name in mechanisms(settings) if name in _SENDS_SECRETS]
    return [
        f"clients of {listener.name} on {listener.address} send secrets that others can read: "
        f"{' and '.join(secrets)} without TLS"
        for listener in listeners(settings)
        if listener.protocol is Protocol.SASL_PLAINTEXT
        and secrets
        and not listener.address.is_loopback
    ]


def _check_client_certificates(settings: ServerSettings) -> None:
    if settings.ssl_client_auth != "none" and not settings.ssl_ca:
        raise _refused(
            "ssl_ca",
            f"ssl_client_auth is {settings.ssl_client_auth}, and no authority is known",
            "name the file of the certificates of those that sign clients' certificates",
        )


def _check_tokens(settings: ServerSettings) -> None:
    for name in (
        "sasl_oauthbearer_jwks",
        "sasl_oauthbearer_expected_issuer",
        "sasl_oauthbearer_expected_audience",
        "sasl_oauthbearer_algorithms",
        "sasl_oauthbearer_sub_claim_name",
    ):
        # A token of another issuer, or for another service, must not open this one.
        if not getattr(settings, name):
            raise _refused(name, "OAUTHBEARER is enabled, and it is empty", "give it")


def _check_ports(found: tuple[ListenerSettings, ...], settings: ServerSettings) -> None:
    ports = [(listener.name, listener.address.port) for listener in found]
    if len(found) > 1 and settings.http:
        ports.append(("http", parse_address(settings.http, setting="http").port))
    taken = sorted((port, name) for name, port in ports if port)
    for (port, name), (next_port, next_name) in pairwise(taken):
        if next_port - port < settings.workers and len(found) > 1:
            raise _refused(
                "listeners",
                f"{name} has port {port} and {next_name} {next_port}, and each of "
                f"{settings.workers} workers needs one of its own",
                "take ports that are as far apart",
            )


def _names(text: str, known: tuple[str, ...], *, setting: str) -> tuple[str, ...]:
    by_folded = {name.upper(): name for name in known}
    names = []
    for part in text.split(",") if text.strip() else ():
        name = by_folded.get(part.strip().upper())
        if name is None:
            raise _refused(setting, f"{part.strip()!r} is unknown", f"one of {', '.join(known)}")
        if name not in names:
            names.append(name)
    return tuple(names)


def _refused(setting: str, detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError("read setting", setting, detail, hint)
