"""Schemas that a person gives as a file."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.tables.decoders import compile_schema
from penstock.pipeline.tables.formats import columns_of
from penstock.pipeline.tables.protoc import compile_proto_file
from penstock.pipeline.tables.schema_text import AVRO, JSON, PROTOBUF, SchemaText

_TEXTS: Final = {".avsc": AVRO, ".json": JSON}
_DESCRIPTORS: Final = (".desc", ".pb")
_PROTO: Final = ".proto"
_BYTES_MAX: Final = 16 << 20


def read_schema_file(
    path: Path, *, message: str = "", folders: Sequence[Path] = (), is_key: bool = False
) -> SchemaText:
    """A schema by its file's suffix: .avsc, .json, .proto, or .desc and .pb for a descriptor set.

    Args:
        message: of Protobuf, the full name of the values' message; "": the file has just one.
        is_key: whether it may be of a number or a text alone.
        folders: where a .proto file's imports are looked for; without any, in its own folder.

    Raises:
        InvalidRequestError: no such file or suffix, no message or several, or no schema that a
            table can have.
    """
    suffix = path.suffix
    if suffix not in (*_TEXTS, *_DESCRIPTORS, _PROTO):
        known = ", ".join((*_TEXTS, _PROTO, *_DESCRIPTORS))
        raise _refused(path, f"suffix {suffix!r}", f"it is one of {known}")
    try:
        body = path.read_bytes()
        text = body.decode() if suffix in _TEXTS else ""
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(path, str(error)) from error
    if len(body) > _BYTES_MAX:
        raise _refused(path, f"{len(body)} bytes are too many for a schema")
    if suffix in _TEXTS:
        schema = SchemaText(kind=_TEXTS[suffix], text=text)
    elif suffix == _PROTO:
        schema = _of_descriptors(path, compile_proto_file(path, folders), message)
    else:
        try:
            schema = _of_descriptors(path, FileDescriptorSet.FromString(body), message)
        except DecodeError as error:
            raise _refused(path, f"it is not a descriptor set: {error}") from error
    decoder = compile_schema(schema, framed=False)
    if not is_key:
        columns_of(decoder, subject=str(path))
    return schema


def _of_descriptors(path: Path, files: FileDescriptorSet, message: str) -> SchemaText:
    if not files.file:
        raise _refused(path, "an empty descriptor set")
    # The file itself is the last one: what it imports is before it.
    last = files.file[-1]
    names = [f"{last.package}.{entry.name}".lstrip(".") for entry in last.message_type]
    if not message and len(names) != 1:
        raise _refused(
            path, f"it has {len(names)} messages", f"--message says which: {', '.join(names[:20])}"
        )
    return SchemaText(
        kind=PROTOBUF,
        text=base64.b64encode(files.SerializeToString(deterministic=True)).decode(),
        message=message or names[0],
    )


def _refused(path: Path, detail: str, hint: str = "") -> InvalidRequestError:
    return InvalidRequestError("read schema", str(path), detail, hint)
