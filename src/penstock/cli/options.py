"""Commands share these options and arguments."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Final

import click
import msgspec

from penstock.cli.client.cluster import Client
from penstock.cli.client.security import ClientSecurity, read_security
from penstock.config.addresses import parse_address
from penstock.model.errors import InvalidRequestError

DEFAULT_SERVER = "127.0.0.1:9092"
_CONFIG: Final = "penstock.command_config"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX: Final = (1 << 63) - 1

Command = Callable[..., object]


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Join several decorators into one; `--help` lists the options in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def packed(
    name: str, kind: type[msgspec.Struct], *options: Callable[[Command], Command]
) -> Callable[[Command], Command]:
    """Add options whose values a command takes as one argument, which several commands share.

    Args:
        name: the argument's name.
        kind: the argument's type, whose fields are the options' values.
        options: in the order of `--help`.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(*args: object, **values: object) -> object:
            made = kind(**{field: values.pop(field) for field in kind.__struct_fields__})
            return command(*args, **values, **{name: made})

        return together(*options)(call)

    return decorate


def server_option(command: Command) -> Command:
    """Add --server, and --command-config for `connect`, which every command that speaks Kafka's
    protocol takes."""
    config = click.option(
        "--command-config",
        metavar="FILE",
        envvar="PENSTOCK_COMMAND_CONFIG",
        show_envvar=True,
        expose_value=False,
        callback=_keep_config,
        help="How to say who you are to a listener with TLS or SASL: NAME=VALUE lines of "
        "librdkafka's settings, such as security.protocol and sasl.password.",
    )
    return config(_server(command))


def _keep_config(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.meta[_CONFIG] = value


def _server(command: Command) -> Command:
    return click.option(
        "--server",
        metavar="HOST:PORT",
        envvar="PENSTOCK_SERVER",
        default=DEFAULT_SERVER,
        show_default=True,
        show_envvar=True,
        help="The server to connect to.",
    )(command)


def timeout_option(command: Command) -> Command:
    """Add --timeout, the deadline of each request."""
    return click.option(
        "--timeout",
        "timeout_s",
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=30.0,
        show_default=True,
        help="Longest time that one request may take.",
    )(command)


def json_option(command: Command) -> Command:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def security() -> ClientSecurity | None:
    """Return what the file of --command-config says; None: there is none.

    Raises:
        PenstockError: the file isn't right.
    """
    context = click.get_current_context(silent=True)
    path = None if context is None else context.meta.get(_CONFIG)
    return read_security(Path(path)) if path else None


def connect(server: str, timeout_s: float) -> Client:
    """Return a client of the server that --server names."""
    address = parse_address(server, setting="--server")
    return Client(address, timeout_s=timeout_s, security=security())


def parse_pairs(pairs: Sequence[str], *, option: str) -> dict[str, str]:
    """Turn NAME=VALUE texts into a mapping. Raises: click.BadParameter."""
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        values[name.strip()] = value
    return values


def parse_time(text: str) -> int:
    """Read a time as ms since the epoch from such a number or from ISO 8601, which is UTC without a
    zone.

    Raises:
        InvalidRequestError: the text is neither, or the time is before 1970 or beyond 64 bits.
    """
    if text.isascii() and text.isdigit():
        # The number of digits is checked first, since Python refuses to read a few thousand digits.
        if len(text) > len(str(_TIME_MS_MAX)) or int(text) > _TIME_MS_MAX:
            raise InvalidRequestError("read time", text[:40], f"it is above {_TIME_MS_MAX} ms")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError(
            "read time",
            text,
            "it is neither ms since the epoch nor ISO 8601",
            "for example 2026-01-31T12:00:00",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment < _EPOCH:
        # A negative time has another meaning for a server, such as -1 for the latest offset.
        raise InvalidRequestError("read time", text, "it is before 1970")
    return (moment - _EPOCH) // timedelta(milliseconds=1)
