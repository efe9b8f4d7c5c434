"""The text of a schema, which settings and messages carry without what reads it. Pure."""

from typing import Final

import msgspec

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
"""The registry's own words."""


class SchemaText(msgspec.Struct, frozen=True):
    """A schema as the registry or a file has it; picklable.

    Args:
        kind: AVRO, JSON or PROTOBUF; "" is one by which no record can be read.
        text: the schema; of kind "" why, or "": the registry does not have it; of PROTOBUF a
            FileDescriptorProto, or a descriptor set, as base64.
        references: names and texts of what it refers to, those that are referred to first.
        message: of a descriptor set, the full name of the message; "": by the value's indexes.
    """

    kind: str
    text: str = ""
    references: list[tuple[str, str]] = []
    message: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether no record can be read by it: the registry lacks it, or the table can't follow
        it."""
        return not self.kind
