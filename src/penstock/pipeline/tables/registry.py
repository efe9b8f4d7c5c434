"""A schema registry by Confluent's HTTP API, as much of it as tables need: schemas by id.

User and password come from the environment where this runs, the driver alone.
"""

import base64
import os
import threading
from typing import Any, Final
from urllib.parse import quote

import msgspec
import urllib3

from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.model.malformed import MALFORMED
from penstock.pipeline.tables.formats import DEPTH_MAX
from penstock.pipeline.tables.protoc import compile_proto_texts
from penstock.pipeline.tables.schema_text import AVRO, PROTOBUF, SchemaText

USER_VARIABLE: Final = "PENSTOCK_REGISTRY_USER"
PASSWORD_VARIABLE: Final = "PENSTOCK_REGISTRY_PASSWORD"  # noqa: S105 - a variable's name
_TIMEOUT_S: Final = 20.0
_RETRIES: Final = 4
_REFERENCES_MAX: Final = 1000
_KNOWN_MAX: Final = 1000


class _Reference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class _Schema(msgspec.Struct, frozen=True, rename={"kind": "schemaType", "text": "schema"}):
    text: str
    kind: str = AVRO
    references: list[_Reference] = []


class _Known:
    """Schemas by registry and id for as long as the process lives: what an id means never changes.

    Bounded: the one that was met first goes first, and is asked for again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schemas: dict[tuple[str, int], SchemaText] = {}

    def get(self, url: str, schema_id: int) -> SchemaText | None:
        return self._schemas.get((url, schema_id))

    def put(self, url: str, schema_id: int, schema: SchemaText) -> None:
        with self._lock:
            self._schemas[url, schema_id] = schema
            while len(self._schemas) > _KNOWN_MAX:
                del self._schemas[next(iter(self._schemas))]


_KNOWN: Final = _Known()


class Registry:
    """Schemas by id, each asked for, and compiled, once in the life of the process.

    Args:
        url: http(s)://HOST[:PORT][/PATH], without a user.
    """

    def __init__(self, url: str) -> None:
        parts = urllib3.util.parse_url(url)
        if parts.scheme not in ("http", "https") or not parts.host:
            raise InvalidRequestError("open registry", url, "it is not an http:// or https:// URL")
        if parts.auth:
            raise InvalidRequestError(
                "open registry",
                parts.host,
                "its URL holds a user",
                f"put them into {USER_VARIABLE} and {PASSWORD_VARIABLE} of the environment",
            )
        self._url = url.rstrip("/")
        self._pool = urllib3.PoolManager(
            retries=urllib3.Retry(
                total=_RETRIES, backoff_factor=0.2, status_forcelist=(429, 500, 502, 503, 504)
            ),
            timeout=_TIMEOUT_S,
        )

    def schema(self, schema_id: int) -> SchemaText:
        """A schema with all that it refers to; `is_missing` where the registry has no such id.

        Raises:
            RetryableError: the registry does not answer.
            InvalidRequestError: it answers what it should not: 401, or no schema.
        """
        known = _KNOWN.get(self._url, schema_id)
        if known is not None:
            return known
        found = self._get(f"/schemas/ids/{schema_id}", _Schema)
        if found is None:
            # Not remembered: it may be registered in a moment.
            return SchemaText(kind="")
        if found.kind == PROTOBUF:
            found = self._with_descriptor(found, f"/schemas/ids/{schema_id}?format=serialized")
        references: dict[str, str] = {}
        self._follow(found, references, 0)
        text = SchemaText(kind=found.kind, text=found.text, references=list(references.items()))
        if found.kind == PROTOBUF and not _is_descriptor(found.text):
            text = _compiled(text, f"schema {schema_id}")
        _KNOWN.put(self._url, schema_id, text)
        return text

    def _follow(self, schema: _Schema, references: dict[str, str], depth: int) -> None:
        """Add what a schema refers to, what is referred to first."""
        for reference in schema.references:
            if reference.name in references:
                continue
            if depth > DEPTH_MAX or len(references) > _REFERENCES_MAX:
                raise InvalidRequestError(
                    "read schema", reference.subject, "too many references, or a circle of them"
                )
            path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
            found = self._get(path, _Schema)
            if found is None:
                raise InvalidRequestError(
                    "read schema",
                    f"{reference.subject} version {reference.version}",
                    "a schema refers to it, and the registry does not have it",
                )
            if schema.kind == PROTOBUF and _is_descriptor(schema.text):
                found = self._with_descriptor(found, f"{path}?format=serialized")
            self._follow(found, references, depth + 1)
            references[reference.name] = found.text

    def _with_descriptor(self, schema: _Schema, path: str) -> _Schema:
        """A schema with its descriptor for its text, where the registry gives descriptors."""
        serialized = self._get(path, _Schema)
        if serialized is None or not _is_descriptor(serialized.text):
            return schema
        return msgspec.structs.replace(schema, text=serialized.text)

    def _get(self, path: str, kind: type[_Schema]) -> _Schema | None:
        headers = {"accept": "application/vnd.schemaregistry.v1+json, application/json"}
        user = os.environ.get(USER_VARIABLE, "")
        if user:
            pair = f"{user}:{os.environ.get(PASSWORD_VARIABLE, '')}".encode()
            headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        try:
            answer: Any = self._pool.request("GET", self._url + path, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise RetryableError("ask registry", self._url + path, str(error)) from error
        if answer.status == 404:
            return None
        if answer.status >= 500 or answer.status == 429:
            raise RetryableError("ask registry", self._url + path, f"HTTP {answer.status}")
        if answer.status != 200:
            raise InvalidRequestError(
                "ask registry",
                self._url + path,
                f"HTTP {answer.status}",
                f"{USER_VARIABLE} and {PASSWORD_VARIABLE} of the environment say who asks",
            )
        try:
            return msgspec.json.decode(answer.data, type=kind)
        except MALFORMED as error:
            raise InvalidRequestError(
                "ask registry", self._url + path, f"it answers no schema: {error}"
            ) from error


def _is_descriptor(text: str) -> bool:
    """Whether it is base64, which no .proto text is: that has spaces, at least one."""
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        # A character beyond ASCII raises ValueError, not binascii.Error.
        return False
    return True


def _compiled(schema: SchemaText, subject: str) -> SchemaText:
    """A Protobuf schema and what it refers to as descriptors, of their texts."""
    name = "penstock/value.proto"
    *imported, main = compile_proto_texts(
        name, schema.text, dict(schema.references), subject=subject
    ).file
    return SchemaText(
        kind=PROTOBUF,
        text=base64.b64encode(main.SerializeToString(deterministic=True)).decode(),
        references=[
            (file.name, base64.b64encode(file.SerializeToString(deterministic=True)).decode())
            for file in imported
        ],
    )
