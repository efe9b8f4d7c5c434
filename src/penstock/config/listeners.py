"""The Kafka listeners of a server, from its settings. Pure.

The setting `kafka` gives one listener, PLAINTEXT. `listeners` gives any number in its place, in
Kafka's words: `NAME://HOST:PORT`, with `advertised_listeners` of the same names, and
`listener_security_protocol_map` for names that are not protocols themselves.
"""

import re
from dataclasses import dataclass
from typing import Final

from penstock.config.addresses import Address, parse_address
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError
from penstock.security.listener import DEFAULT_NAME, Protocol

LISTENERS_MAX: Final = 32
_NAME: Final = re.compile(r"[A-Z0-9][A-Z0-9_.-]{0,39}")


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """One listener. `setting` is the setting that it comes from, for errors."""

    name: str
    protocol: Protocol
    address: Address
    advertised: Address
    """Its port is 0 where the listening port is chosen at the start."""
    setting: str


def listeners(settings: ServerSettings) -> tuple[ListenerSettings, ...]:
    """Return the listeners in the order in which they are given, one at least.

    Raises:
        InvalidRequestError: a setting isn't a list of listeners, or the lists don't fit together.
    """
    if not settings.listeners:
        return (_simple(settings),)
    addresses = _addresses(settings.listeners, setting="listeners")
    advertised = _addresses(settings.advertised_listeners, setting="advertised_listeners")
    protocols = _protocols(settings.listener_security_protocol_map)
    if len(addresses) > LISTENERS_MAX:
        raise _refused(
            "listeners", f"{len(addresses)} listeners, at most {LISTENERS_MAX} are allowed"
        )
    for name in advertised:
        if name not in addresses:
            raise _refused(
                "advertised_listeners", f"there is no listener {name}", "name it in listeners"
            )
    return tuple(
        ListenerSettings(
            name,
            _protocol(name, protocols),
            address,
            advertised.get(name, address),
            "listeners",
        )
        for name, address in addresses.items()
    )


def authenticates(listener: ListenerSettings, settings: ServerSettings) -> bool:
    """Whether every client of a listener must prove who it is."""
    if listener.protocol is Protocol.SSL:
        return settings.ssl_client_auth == "required"
    return listener.protocol.has_sasl


def _simple(settings: ServerSettings) -> ListenerSettings:
    address = parse_address(settings.kafka, setting="kafka")
    advertised = (
        parse_address(settings.advertised, setting="advertised") if settings.advertised else address
    )
    return ListenerSettings(DEFAULT_NAME, Protocol.PLAINTEXT, address, advertised, "kafka")


def _addresses(text: str, *, setting: str) -> dict[str, Address]:
    found: dict[str, Address] = {}
    for part in _parts(text):
        name, separator, address = part.partition("://")
        name = _name(name, part, setting=setting)
        if not separator:
            raise _refused(
                setting, f"{part!r} is not NAME://HOST:PORT", "for example SASL_SSL://0.0.0.0:9093"
            )
        if name in found:
            raise _refused(setting, f"listener {name} is named twice")
        found[name] = parse_address(address, setting=setting)
    return found


def _protocols(text: str) -> dict[str, Protocol]:
    setting = "listener_security_protocol_map"
    found: dict[str, Protocol] = {}
    for part in _parts(text):
        name, colon, protocol = part.partition(":")
        name = _name(name, part, setting=setting)
        if not colon or protocol.strip().upper() not in Protocol.__members__:
            raise _refused(
                setting,
                f"{part!r} is not NAME:PROTOCOL",
                f"a protocol is one of {', '.join(Protocol)}",
            )
        found[name] = Protocol[protocol.strip().upper()]
    return found


def _protocol(name: str, protocols: dict[str, Protocol]) -> Protocol:
    if name in protocols:
        return protocols[name]
    if name in Protocol.__members__:
        return Protocol[name]
    raise _refused(
        "listener_security_protocol_map",
        f"it doesn't say the protocol of listener {name}",
        f"add {name}:SASL_SSL, or name the listener as its protocol",
    )


def _name(text: str, part: str, *, setting: str) -> str:
    name = text.strip().upper()
    if _NAME.fullmatch(name) is None:
        raise _refused(
            setting,
            f"{part!r} begins with no listener's name",
            "at most 40 letters, digits and the signs _ . -",
        )
    return name


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _refused(setting: str, detail: str, hint: str = "") -> InvalidRequestError:
    return InvalidRequestError("read setting", setting, detail, hint)
