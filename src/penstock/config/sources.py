"""Reads settings from their sources: defaults, a TOML file, the environment, the command line.

Each overrides those before it. A name that is not a setting is refused with the nearest one,
so that a misspelt setting can't be silently without effect; a bad value is refused with its
name, source and what is allowed.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.config.checks import check_together
from penstock.config.fields import ENVIRONMENT_PREFIX, SettingValue, setting_fields
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError, NotFoundError

CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"
"""Names the TOML file where no --config is given."""
OTHERS_VARIABLES: Final = frozenset(
    {
        "PENSTOCK_API_KEY",
        "PENSTOCK_API_KEY_FILE",
        "PENSTOCK_SERVER",
        "PENSTOCK_COMMAND_CONFIG",
        "PENSTOCK_STATUS_URL",
        "PENSTOCK_KERNEL_CACHE",
        "PENSTOCK_REGISTRY_USER",
        "PENSTOCK_REGISTRY_PASSWORD",
    }
)
"""Read by commands that talk to a server, and by jobs; a server ignores them."""
_SECRET: Final = "cluster_secret"  # noqa: S105 - a setting's name
_SECRET_FILE: Final = "cluster_secret_file"  # noqa: S105 - a setting's name
LIKENESS_MIN: Final = 0.6
PIPELINE_SECTION: Final = "pipeline"
"""Section of a TOML file for `penstock pipeline`, whose variables have its prefix."""
_OTHERS_PREFIXES: Final = ("PENSTOCK_PIPELINE_", "PENSTOCK_AUTHZ_")
"""Other commands read the variables with these prefixes; a server leaves them alone."""
_SERVICE_LINK: Final = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)=.*|\w+_PORT(_\d+_[A-Z]+(_(PROTO|PORT|ADDR))?=.*|=\w+://.*)"
)
"""Matches what Kubernetes sets in a pod's environment for each service, even one named penstock."""
_RESERVED_PREFIXES: Final = ("PENSTOCK_TEST_", "PENSTOCK_BENCH_", "PENSTOCK_PEERS")


def load_settings(
    *,
    file: Path | None,
    environment: Mapping[str, str],
    command_line: Mapping[str, str],
    check: Callable[[ServerSettings], None] = check_together,
) -> ServerSettings:
    """The settings of a server.

    Args:
        file: a TOML file with settings at its top level; None: the one that PENSTOCK_CONFIG
            names, if any.
        environment: all variables; those with the prefix PENSTOCK_ are read.
        command_line: text by setting name.
        check: says what must hold between them; a command that doesn't serve asks for less.

    Raises:
        InvalidRequestError: a name is unknown or a value not allowed.
        NotFoundError: there is no such file.
    """
    values: dict[str, object] = {}
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    if file is not None:
        for name, value in _read_toml(file).items():
            if name == PIPELINE_SECTION and isinstance(value, dict):
                continue
            values[name] = _parse(name, value, f"file {file}")
    for name, value in _from_environment(environment).items():
        values[name] = _parse(name, value, f"environment variable {_variable(name)}")
    for name, value in command_line.items():
        values[name] = _parse(name, value, f"option {setting_fields()[name].option}")
    if _SECRET in command_line:
        values.pop(_SECRET_FILE, None)
    elif secret_file := values.get(_SECRET_FILE):
        values[_SECRET] = _read_secret(Path(str(secret_file)))
    settings = msgspec.convert(values, ServerSettings)
    check(settings)
    return settings


def read_pipeline_section(file: Path) -> dict[str, object]:
    """The section [pipeline] of a TOML file, which may be a server's; empty where there is none.

    Raises:
        InvalidRequestError: it is not TOML, or has settings that no server has.
        NotFoundError: there is no such file.
    """
    section = _read_toml(file).get(PIPELINE_SECTION, {})
    return section if isinstance(section, dict) else {}


def _variable(name: str) -> str:
    return setting_fields()[name].variable


def _parse(name: str, value: object, source: str) -> SettingValue:
    field = setting_fields()[name]
    try:
        return field.parse(value)
    except ValueError:
        shown = "the value" if field.about.secret else repr(value)
        raise InvalidRequestError(
            "read setting", name, f"{shown} from {source} is not {field.allowed}"
        ) from None


def _read_toml(file: Path) -> dict[str, object]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError("read settings", str(file), "there is no such file") from None
    except OSError as error:
        raise InvalidRequestError("read settings", str(file), error.strerror or "") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError("read settings", str(file), f"not TOML: {error}") from error
    for name, value in table.items():
        if name == PIPELINE_SECTION and isinstance(value, dict):
            continue
        if name not in setting_fields():
            raise _unknown(name, f"file {file}", setting_fields())
    return table


def _read_secret(file: Path) -> str:
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        detail = getattr(error, "strerror", None) or "it isn't text"
        raise InvalidRequestError("read secret", str(file), detail) from error
    if not secret:
        raise InvalidRequestError("read secret", str(file), "it is empty")
    # Two while the secret is being changed: the server itself reads both.
    return secret.splitlines()[0].strip()


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    by_variable = {field.variable: field.name for field in setting_fields().values()}
    values = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable == CONFIG_VARIABLE or variable in OTHERS_VARIABLES:
            continue
        if variable.startswith(_RESERVED_PREFIXES):
            continue
        if variable not in by_variable:
            if variable.startswith(_OTHERS_PREFIXES):
                continue
            if _SERVICE_LINK.fullmatch(f"{variable}={environment[variable]}"):
                continue
            raise _unknown(variable, "the environment", by_variable)
        values[by_variable[variable]] = environment[variable]
    return values


def _unknown(name: str, source: str, known: Iterable[str]) -> InvalidRequestError:
    nearest = max(known, key=lambda candidate: _likeness(name, candidate))
    is_near = _likeness(name, nearest) >= LIKENESS_MIN
    hint = f"did you mean {nearest}?" if is_near else "docs/settings.md lists them"
    return InvalidRequestError("read setting", name, f"unknown setting in {source}", hint)


def _likeness(name: str, candidate: str) -> float:
    """From 0 to 1. Words may be in another order: "max_bytes" is as good as "bytes_max"."""
    pairs = ((name, candidate), (_sorted_words(name), _sorted_words(candidate)))
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)


def _sorted_words(name: str) -> str:
    return "_".join(sorted(name.lower().split("_")))
