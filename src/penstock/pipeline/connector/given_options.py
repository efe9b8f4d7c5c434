"""Options as Spark hands them over, and the kinds of values that they have. Pure.

Names are case-insensitive. An unknown one is an error that names the nearest: an option that is
misspelt and silently ignored reads or writes something else than was meant.
"""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.client import ClientOptions

DOOR_OPTIONS: Final = ("url", "secretFile", "objects", "timeoutMs", "deadlineMs")
"""The options that `GivenOptions.api` reads."""
_UNITS_MS: Final = {"ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


class GivenOptions:
    """The options of one operation. All methods that read a value name it in their errors.

    Args:
        operation: "read" or "write", for errors.

    Raises (all methods):
        InvalidRequestError: a value is not of its kind.
    """

    def __init__(self, operation: str, options: Mapping[str, str]) -> None:
        self._operation = operation
        self._values = {name.lower(): str(value) for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def refuse_unknown(self, known: Sequence[str], let_be: Collection[str] = ()) -> None:
        """Refuse what is neither known nor among those, in lower case, that are to be let be."""
        by_lower = {name.lower(): name for name in known}
        for name in sorted(self._values):
            if name in by_lower or name in let_be:
                continue
            if name.startswith("kafka."):
                raise self.invalid(
                    name,
                    "it is one of Kafka's client",
                    "give url, the HTTP addresses of Penstock's agents"
                    if name == "kafka.bootstrap.servers"
                    else f"leave it out: no Kafka client takes part in this {self._operation}",
                )
            near = difflib.get_close_matches(name, by_lower, n=1)
            raise self.invalid(
                name,
                "it is unknown",
                f"did you mean {by_lower[near[0]]}?" if near else f"there are {', '.join(known)}",
            )

    def invalid(self, name: str, detail: str, hint: str = "") -> InvalidRequestError:
        """The error for an option."""
        return InvalidRequestError(self._operation, f"option {name}", detail, hint)

    # -- values of each kind -----------------------------------------------------------------------

    def found(self, name: str) -> str | None:
        """The text as it was given; None where the option wasn't."""
        return self._values.get(name.lower())

    def text(self, name: str) -> str:
        """The text as it was given, or ""."""
        return self._values.get(name.lower(), "")

    def names(self, name: str) -> list[str]:
        """Return names that are separated by commas."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]

    def one_of(self, name: str, values: Sequence[str]) -> str:
        """One of `values`, in any case; the first is the default."""
        text = self._values.get(name.lower(), values[0]).strip().lower()
        if text not in values:
            raise self.invalid(name, f"{text!r} is none of {', '.join(values)}")
        return text

    def flag(self, name: str, *, default: bool) -> bool:
        """`true` or `false`."""
        text = self.found(name)
        if text is None:
            return default
        if text.strip().lower() not in {"true", "false"}:
            raise self.invalid(name, f"{text!r} is neither true nor false")
        return text.strip().lower() == "true"

    def integer_found(self, name: str, *, least: int, most: int | None = None) -> int | None:
        """A whole number; None where the option wasn't given."""
        text = self.found(name)
        if text is None:
            return None
        is_number = re.fullmatch(r"[0-9]{1,19}", text.strip())
        if not is_number or int(text) < least or (most is not None and int(text) > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise self.invalid(name, f"{text!r} is not a whole number {bounds}")
        return int(text)

    def integer(self, name: str, default: int, *, least: int, most: int | None = None) -> int:
        """A whole number."""
        number = self.integer_found(name, least=least, most=most)
        return default if number is None else number

    def duration_ms(self, name: str, default: int) -> int:
        """A number with or without a unit."""
        text = self.found(name)
        if text is None:
            return default
        match = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", text.strip().lower())
        if match is None or match[2] not in _UNITS_MS:
            raise self.invalid(
                name, f"{text!r} is not a duration", "for example 500ms, 30s, 15m, 1h"
            )
        return int(match[1]) * _UNITS_MS[match[2]]

    # -- how the cluster is reached ----------------------------------------------------------------

    def api(self) -> ClientOptions:
        """Return how this operation reaches the cluster, without a secret."""
        return ClientOptions(
            urls=self._urls(),
            secret_file=self.text("secretFile"),
            objects=self.one_of("objects", ("auto", "agent", "ambient")),
            timeout_s=self.integer("timeoutMs", 30_000, least=1) / 1000,
            deadline_s=self.integer("deadlineMs", 120_000, least=1) / 1000,
        )

    def _urls(self) -> tuple[str, ...]:
        urls = tuple(self.names("url"))
        if not urls:
            raise self.invalid("url", "it is missing", "agents' HTTP ports: http://HOST:PORT,...")
        for url in urls:
            if "@" in url:
                # Not repeated: it may hold a password.
                raise self.invalid(
                    "url",
                    "it has a user or password in it",
                    "secrets come from PENSTOCK_CLUSTER_SECRET or the option secretFile",
                )
            if not re.match(r"https?://", url):
                raise self.invalid("url", f"{url!r} is not an http:// or https:// address")
        return urls
