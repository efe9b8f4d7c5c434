"""The options of `df.write` and `writeStream` `.format("penstock")`. Pure."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.client import DoorOptions
from penstock.records.decode import CODECS

WRITE_OPTIONS: Final = (
    "url",
    "secretFile",
    "objects",
    "topic",
    "writerId",
    "batchId",
    "compression",
    "batchBytes",
    "objectBytes",
    "leaseMs",
    "timeoutMs",
    "deadlineMs",
    "checkpointLocation",
    "checkpointId",
)
_SPARKS: Final = {"path", "queryname", "outputmode"}
"""What Spark itself may hand over beside the user's."""
_LEASE_MS: Final = 600_000
ONE_OFF_PREFIX: Final = "once-"
"""Of the ids of writers that write once: the agents forget them soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What the user said. Sizes in bytes, times in ms.

    Args:
        topic: where all rows go; "": where each row's column `topic` says.
        writer_id: "": a batch write of its own, which another one is not told from.
        batch_id: of a batch write; -1 without.
        checkpoint: the location of a stream's checkpoint, as given; "" without.
        checkpoint_id: what tells it from others where its own id can't be read; "" without.
        batch_bytes: of a record batch before it is compressed.
        object_bytes: about the size at which a task puts an object.
    """

    door: DoorOptions
    topic: str
    writer_id: str
    batch_id: int
    checkpoint: str
    checkpoint_id: str
    codec: str
    batch_bytes: int
    object_bytes: int
    lease_ms: int


def parse_write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Read options as Spark hands them over, names in any case.

    Raises:
        InvalidRequestError: one is unknown, missing or not what it must be.
    """
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    writer_id = given.get("writerid", "")
    has_batch = "batchid" in given
    if streaming:
        _check_stream(given, writer_id=writer_id, has_batch=has_batch)
    elif bool(writer_id) != has_batch:
        raise _invalid(
            "batchId" if writer_id else "writerId",
            "it takes both writerId and batchId to write a batch exactly once",
            "give both, or neither: then a write that is run again is written again",
        )
    if writer_id.startswith(ONE_OFF_PREFIX):
        raise _invalid("writerId", f"ids that begin with {ONE_OFF_PREFIX} are given by Penstock")
    codec = given.get("compression", "none").lower()
    if codec not in CODECS:
        raise _invalid("compression", f"{codec!r} is none of {', '.join(CODECS)}")
    return WriteOptions(
        door=_door_options(given),
        topic=given.get("topic", ""),
        writer_id=writer_id,
        batch_id=_integer(given, "batchId", -1, least=0),
        checkpoint=given.get("checkpointlocation", ""),
        checkpoint_id=given.get("checkpointid", ""),
        codec=codec,
        batch_bytes=_integer(given, "batchBytes", 512 << 10, least=1),
        object_bytes=_integer(given, "objectBytes", 64 << 20, least=1 << 16, most=1 << 30),
        lease_ms=_integer(given, "leaseMs", _LEASE_MS, least=1000),
    )


def _check_stream(given: Mapping[str, str], *, writer_id: str, has_batch: bool) -> None:
    if not writer_id:
        raise _invalid(
            "writerId",
            "a stream needs one, under which its batches are remembered",
            'for example .option("writerId", "delays-by-hour"); keep it with the checkpoint',
        )
    if has_batch:
        raise _invalid("batchId", "the batches of a stream have Spark's numbers")
    if not given.get("checkpointlocation"):
        raise _invalid(
            "checkpointLocation",
            "it is missing, and tells batches that are run again from new ones",
            'give it by .option("checkpointLocation", ...), not by the session\'s configuration',
        )


def _door_options(given: Mapping[str, str]) -> DoorOptions:
    urls = tuple(url.strip() for url in given.get("url", "").split(",") if url.strip())
    if not urls:
        raise _invalid("url", "it is missing", "agents' HTTP ports: http://host:9644,...")
    for url in urls:
        if not re.match(r"https?://", url):
            raise _invalid("url", f"{url!r} is no http:// or https:// address")
        if "@" in url:
            raise _invalid(
                "url",
                "it has a user or password in it",
                "secrets come from PENSTOCK_CLUSTER_SECRET or the option secretFile",
            )
    objects = given.get("objects", "auto").lower()
    if objects not in {"auto", "agent", "ambient"}:
        raise _invalid("objects", f"{objects!r} is none of auto, agent, ambient")
    return DoorOptions(
        urls=urls,
        secret_file=given.get("secretfile", ""),
        objects=objects,
        timeout_s=_integer(given, "timeoutMs", 30_000, least=1) / 1000,
        deadline_s=_integer(given, "deadlineMs", 120_000, least=1) / 1000,
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in WRITE_OPTIONS}
    for name in sorted(given):
        if name in known or name in _SPARKS:
            continue
        if name.startswith("kafka."):
            raise _invalid(
                name,
                "it is one of Kafka's client",
                "give url, the HTTP addresses of agents"
                if name == "kafka.bootstrap.servers"
                else "leave it out: no Kafka client takes part in this write",
            )
        near = difflib.get_close_matches(name, known, n=1)
        raise _invalid(
            name,
            "it is unknown",
            f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(WRITE_OPTIONS)}",
        )


def _integer(
    given: Mapping[str, str], name: str, default: int, *, least: int, most: int = 2**53
) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,16}", text.strip()) or not least <= int(text) <= most:
        raise _invalid(name, f"{text!r} is no whole number from {least} to {most}")
    return int(text)


def _invalid(name: str, detail: str, hint: str = "") -> InvalidRequestError:
    return InvalidRequestError("write", f"option {name}", detail, hint)
