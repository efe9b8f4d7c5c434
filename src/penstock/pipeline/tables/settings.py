"""A table's job gets its settings from the topic's configs, its options, and defaults."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from penstock.model.errors import InvalidRequestError
from penstock.model.table_names import table_name
from penstock.pipeline.tables.schema_text import AVRO, JSON, SchemaText

APPEND: Final = "append"
UPSERT: Final = "upsert"
RAW: Final = "raw"
REGISTRY: Final = "registry"
FILE: Final = "file"
TEXT: Final = "text"
"""In configs: the schema of TEXT_CONFIG, which is that of a file from then on."""
TEXT_CONFIG: Final = "penstock.table.schema.text"
STOP: Final = "stop"
DEAD_LETTER: Final = "dead-letter"
IGNORE: Final = "ignore"
REST: Final = "rest"
_SECRET_WORDS: Final = (
    "token",
    "credential",
    "password",
    "passwd",
    "pwd",
    "secret",
    "access-key",
    "account-key",
    "accountkey",
    "api-key",
    "authorization",
    "connection-string",
)
_PASSWORD_IN_URL: Final = re.compile(r"[^/]*://[^:/@]*:[^@]+@")
"""A password as SQLAlchemy reads it: it goes up to the last @, and may hold slashes."""
_NAMED_IN_VALUE: Final = re.compile(r"(?:^|[?&;\s])([^=?&;\s/:]+)\s*=\s*[^&;\s]")
"""A named value after a URL's question mark, or in strings of libpq and ODBC."""
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")


class CatalogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The place where tables are listed and lie. `properties` are PyIceberg's own, none a
    secret."""

    warehouse: str = "warehouse"
    name: str = "penstock"
    properties: dict[str, str] = {}

    def check(self) -> None:
        """Raises: InvalidRequestError: a property that is a secret, or holds one."""
        if _holds_secret(self.warehouse):
            raise InvalidRequestError(
                "open catalog",
                self.name,
                "the warehouse's location holds a password",
                "put it into the environment, as AWS_SECRET_ACCESS_KEY and its like",
            )
        for key, value in self.properties.items():
            is_named = _is_secret(key)
            if is_named or _holds_secret(value):
                part = key.upper().replace(".", "__").replace("-", "_")
                raise InvalidRequestError(
                    "open catalog",
                    self.name,
                    f"{key} is a secret" if is_named else f"{key} holds a password",
                    f"put it into PYICEBERG_CATALOG__{self.name.upper()}__{part} of the "
                    "environment, or AWS_ACCESS_KEY_ID and its like",
                )


class TableSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One table's job. What is "" comes from the topic's config, else from DEFAULTS.

    Args:
        topic: its name.
        table: `namespace.table`; by default the topic's name.
        mode: append, upsert.
        schema: raw, registry, file.
        value_schema: of schema = file.
        key_kind: what keys are: raw, registry, file; only raw where values are.
        key_schema: of key_kind = file.
        incompatible: stop or dead-letter: what becomes of records of a schema that the table can't
            follow.
        unknown: dead-letter, ignore or rest: what becomes of a JSON value's properties that its
            schema does not name.
        registry: URL of the schema registry; used where values or keys have a schema of it, which
            this alone does not say.
        partition: transforms, only for a new table; `buckets` goes before it with upsert.
        buckets: of a new upsert table.
        dead_letters: topic of bad records; by default the topic's name and ".dlq".
        target_file_bytes: of Parquet files, about.
        commit_bytes: the most of the log that one commit takes, about; 0: by the engine's
            parallelism.
        task_bytes: the most that one task decodes, about.
        begin: where a new table begins: see `penstock.pipeline.tables.begin`; "": at the log's
            start.
        adopt: whether the table of a topic that was deleted goes on with the one of its name.
        restart: whether a table that was dropped is made again.
    """

    topic: str
    catalog: CatalogSettings = CatalogSettings()
    table: str = ""
    mode: str = ""
    schema: str = ""
    value_schema: SchemaText | None = None
    key_kind: str = ""
    key_schema: SchemaText | None = None
    incompatible: str = ""
    unknown: str = ""
    registry: str = ""
    partition: str = ""
    buckets: int = 16
    dead_letters: str = ""
    target_file_bytes: int = 128 << 20
    commit_bytes: int = 0
    task_bytes: int = 512 << 20
    begin: str = ""
    adopt: bool = False
    restart: bool = False

    @property
    def identifier(self) -> tuple[str, ...]:
        """Namespaces and name in the catalog."""
        parts = tuple(table_name(self.topic, self.table).split("."))
        if not all(_NAME.fullmatch(part) for part in parts):
            raise InvalidRequestError(
                "name a table", self.table, "names have letters, digits and _", "as sales.orders"
            )
        return parts

    @property
    def full_name(self) -> str:
        """namespace.table"""
        return ".".join(self.identifier)


TABLE_NAME_CONFIG: Final = "penstock.table.name"
_CONFIGS: Final = {
    TABLE_NAME_CONFIG: "table",
    "penstock.table.mode": "mode",
    "penstock.table.schema": "schema",
    "penstock.table.key.schema": "key_kind",
    "penstock.table.partition": "partition",
    "penstock.table.dlq": "dead_letters",
    "penstock.table.begin": "begin",
    "penstock.table.schema.incompatible": "incompatible",
    "penstock.table.schema.unknown": "unknown",
}
_DEFAULTS: Final = {
    "mode": APPEND,
    "schema": RAW,
    "key_kind": RAW,
    "partition": "day(timestamp)",
    "incompatible": STOP,
    "unknown": DEAD_LETTER,
}


def _is_secret(name: str) -> bool:
    name = name.lower().replace("_", "-")
    return any(word in name for word in _SECRET_WORDS)


def _holds_secret(value: str) -> bool:
    plain = unquote(value)
    return bool(_PASSWORD_IN_URL.match(value)) or any(
        _is_secret(name) for name in _NAMED_IN_VALUE.findall(plain)
    )


def with_policies(settings: TableSettings, configs: Mapping[str, str]) -> TableSettings:
    """Return settings with what a topic's configs say of values that don't fit their schemas."""
    fields = ("incompatible", "unknown")
    said = {
        field: configs.get(name) or _DEFAULTS[field]
        for name, field in _CONFIGS.items()
        if field in fields
    }
    return msgspec.structs.replace(settings, **said)


def schema_text_of(configs: Mapping[str, str]) -> SchemaText | None:
    """The schema of a topic's values by its configs; None: these have none."""
    if configs.get("penstock.table.schema") != TEXT:
        return None
    return _schema_of(configs.get(TEXT_CONFIG, ""))


def _schema_of(text: str) -> SchemaText | None:
    try:
        document = msgspec.json.decode(text or "null")
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return None
    return SchemaText(kind=AVRO if document.get("type") == "record" else JSON, text=text)


def resolve(settings: TableSettings, configs: Mapping[str, str]) -> TableSettings:
    """Settings with nothing left open: their own values, the topic's configs, defaults.

    Raises:
        InvalidRequestError: values that can't be, or not together.
    """
    changes: dict[str, str] = {}
    for name, field in _CONFIGS.items():
        value = getattr(settings, field) or configs.get(name) or _DEFAULTS.get(field, "")
        changes[field] = value
    changes["dead_letters"] = changes["dead_letters"] or f"{settings.topic}.dlq"
    resolved = msgspec.structs.replace(settings, **changes)
    if resolved.schema == TEXT:
        resolved = msgspec.structs.replace(
            resolved, schema=FILE, value_schema=_schema_of(configs.get(TEXT_CONFIG, ""))
        )
    problem = ""
    if resolved.mode not in (APPEND, UPSERT):
        problem = f"mode {resolved.mode}: it is append or upsert"
    elif resolved.schema not in (RAW, REGISTRY, FILE):
        problem = f"schema {resolved.schema}: it is raw, registry or file"
    elif resolved.key_kind not in (RAW, REGISTRY, FILE):
        problem = f"key schema {resolved.key_kind}: it is raw, registry or file"
    elif resolved.key_kind != RAW and resolved.schema == RAW:
        problem = "its keys have a schema, and its values none"
    elif REGISTRY in (resolved.schema, resolved.key_kind) and not resolved.registry:
        problem = "schema registry needs the registry's URL"
    elif resolved.schema == FILE and resolved.value_schema is None:
        problem = f"its schema is in {TEXT_CONFIG}, which is not an Avro record or JSON Schema"
        if settings.schema == FILE:
            problem = "schema file needs a schema file"
    elif resolved.key_kind == FILE and resolved.key_schema is None:
        problem = "key schema file needs a schema file"
    elif resolved.dead_letters == resolved.topic:
        problem = "its dead letters would become its records"
    elif resolved.buckets < 1 or min(resolved.target_file_bytes, resolved.task_bytes) < 1:
        problem = "sizes and counts are positive"
    if problem:
        raise InvalidRequestError("make a table", settings.topic, problem)
    return resolved
