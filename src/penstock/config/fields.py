"""The fields of `ServerSettings` as values: how the text of each is read, and what is allowed."""

import enum
import typing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Literal, TypeAlias

from penstock.config.about import About
from penstock.config.settings import ServerSettings
from penstock.config.values import (
    format_duration,
    format_size,
    parse_duration,
    parse_integer,
    parse_labels,
    parse_size,
    parse_switch,
)

ENVIRONMENT_PREFIX: Final = "PENSTOCK_"
_MINUTE_MS: Final = 60_000


class Kind(enum.Enum):
    """The ways in which a setting's text is parsed."""

    TEXT = "text"
    LABELS = "labels"
    CHOICE = "choice"
    SWITCH = "switch"
    NUMBER = "number"
    SIZE = "size"
    DURATION_MS = "duration in ms"
    DURATION_MINUTES = "duration in minutes"


SettingValue: TypeAlias = str | int | bool | dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingField:
    """One setting. `option` and `variable` are its names on the command line and in the
    environment."""

    name: str
    kind: Kind
    default: SettingValue
    about: About
    choices: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """For example "--segment-bytes"."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """For example "PENSTOCK_SEGMENT_BYTES"."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def allowed(self) -> str:
        """Say in words which values are allowed."""
        match self.kind:
            case Kind.TEXT:
                return "text"
            case Kind.LABELS:
                return 'names with values, such as "region=eu,zone=a"'
            case _:
                return self._allowed_value()

    def _allowed_value(self) -> str:
        least, most = self.show(self.about.least), self.show(self.about.most)
        match self.kind:
            case Kind.CHOICE:
                return "one of " + ", ".join(self.choices)
            case Kind.SWITCH:
                return "true or false"
            case Kind.NUMBER:
                return f"a whole number from {least} to {most}"
            case Kind.SIZE:
                return f'a size such as "64MiB" or a number of bytes, from {least} to {most}'
            case Kind.DURATION_MS:
                return f'a duration such as "10s" or a number of ms, from {least} to {most}'
            case _:
                return f'a duration such as "7d" or a number of minutes, from {least} to {most}'

    def parse(self, value: object) -> SettingValue:
        """A value of this setting from text, or from what a TOML file holds.

        Raises:
            ValueError: it is not `allowed`.
        """
        if isinstance(value, dict):
            if self.kind is not Kind.LABELS:
                raise ValueError(value)
            return parse_labels(",".join(f"{name}={text}" for name, text in value.items()))
        if isinstance(value, bool):
            if self.kind is not Kind.SWITCH:
                raise ValueError(value)
            return value
        if isinstance(value, int):
            # Numbers of a TOML file; a switch is none, and text needs its quotes.
            if self.kind in {Kind.SWITCH, Kind.TEXT, Kind.CHOICE, Kind.LABELS}:
                raise ValueError(value)
            return self._bounded(value)
        if not isinstance(value, str):
            raise ValueError(value)  # noqa: TRY004 - one kind of error for whatever is not allowed
        return self._parse_text(value)

    def show(self, value: object) -> str:
        """A value as a person would write it."""
        if self.about.secret:
            return "..." if value else ""
        match self.kind:
            case Kind.LABELS:
                assert isinstance(value, dict)
                return ",".join(f"{name}={text}" for name, text in value.items())
            case Kind.SWITCH:
                return "true" if value else "false"
            case Kind.SIZE:
                assert isinstance(value, int)
                return format_size(value)
            case Kind.DURATION_MS:
                assert isinstance(value, int)
                return format_duration(value)
            case Kind.DURATION_MINUTES:
                assert isinstance(value, int)
                return format_duration(value * _MINUTE_MS)
            case _:
                return str(value)

    def _parse_text(self, text: str) -> SettingValue:
        match self.kind:
            case Kind.TEXT:
                return text.strip()
            case Kind.LABELS:
                return parse_labels(text)
            case Kind.CHOICE:
                if text.strip().lower() not in self.choices:
                    raise ValueError(text)
                return text.strip().lower()
            case Kind.SWITCH:
                return parse_switch(text)
            case Kind.NUMBER:
                return self._bounded(parse_integer(text))
            case Kind.SIZE:
                return self._bounded(parse_size(text))
            case Kind.DURATION_MS:
                return self._bounded(parse_duration(text, unit_ms=1))
            case Kind.DURATION_MINUTES:
                return self._bounded(parse_duration(text, unit_ms=_MINUTE_MS))

    def _bounded(self, number: int) -> int:
        if not self.about.least <= number <= self.about.most:
            raise ValueError(number)
        return number


@cache
def setting_fields() -> dict[str, SettingField]:
    """All settings by name, in the order of `ServerSettings`."""
    hints = typing.get_type_hints(ServerSettings, include_extras=True)
    defaults = ServerSettings()
    return {
        name: _field(name, hints[name], getattr(defaults, name))
        for name in ServerSettings.__struct_fields__
    }


def _field(name: str, hint: object, default: SettingValue) -> SettingField:
    assert typing.get_origin(hint) is Annotated, name
    base, about = typing.get_args(hint)
    choices = typing.get_args(base) if typing.get_origin(base) is Literal else ()
    kind = Kind.CHOICE if choices else _kind(name, base)
    return SettingField(name=name, kind=kind, default=default, about=about, choices=choices)


def _kind(name: str, base: type) -> Kind:
    if base is bool:
        return Kind.SWITCH
    if typing.get_origin(base) is dict:
        return Kind.LABELS
    if base is str:
        return Kind.TEXT
    if name.endswith(("_bytes", "_bytes_max")):
        return Kind.SIZE
    if name.endswith("_ms"):
        return Kind.DURATION_MS
    if name.endswith("_minutes"):
        return Kind.DURATION_MINUTES
    return Kind.NUMBER
