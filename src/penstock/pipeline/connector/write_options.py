"""The options of `df.write` and `writeStream` `.format("penstock")`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.pipeline.client import ClientOptions
from penstock.pipeline.connector.given_options import DOOR_OPTIONS, GivenOptions
from penstock.records.decode import CODECS

WRITE_OPTIONS: Final = (
    *DOOR_OPTIONS,
    "topic",
    "writerId",
    "batchId",
    "compression",
    "batchBytes",
    "objectBytes",
    "leaseMs",
    "checkpointLocation",
    "checkpointId",
)
_SPARKS: Final = {"path", "queryname", "outputmode"}
"""Options that Spark itself may add to the user's."""
_LEASE_MS: Final = 600_000
ONE_OFF_PREFIX: Final = "once-"
"""The beginning of the ids of writers that write once: the agents forget them soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A user's options for writing. Sizes in bytes, times in ms.

    Args:
        topic: the topic of all rows; "": each row's column `topic` names it.
        writer_id: "": a batch write of its own, which can't be recognized when it is repeated.
        batch_id: the number of a batch write; -1: none.
        checkpoint: the location of a stream's checkpoint, as given; "": none.
        checkpoint_id: distinguishes the checkpoint where its own id can't be read; "": none.
        batch_bytes: the size of a record batch before it is compressed.
        object_bytes: about the size at which a task puts an object.
    """

    api: ClientOptions
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
    given = GivenOptions("write", options)
    given.refuse_unknown(WRITE_OPTIONS, _SPARKS)
    writer_id = given.text("writerId")
    has_batch = "batchId" in given
    if streaming:
        _check_stream(given, writer_id=writer_id, has_batch=has_batch)
    elif bool(writer_id) != has_batch:
        raise given.invalid(
            "batchId" if writer_id else "writerId",
            "it takes both writerId and batchId to write a batch exactly once",
            "give both, or neither: then a write that is run again is written again",
        )
    if writer_id.startswith(ONE_OFF_PREFIX):
        raise given.invalid(
            "writerId", f"ids that begin with {ONE_OFF_PREFIX} are given by Penstock"
        )
    return WriteOptions(
        api=given.api(),
        topic=given.text("topic"),
        writer_id=writer_id,
        batch_id=given.integer("batchId", -1, least=0, most=2**53),
        checkpoint=given.text("checkpointLocation"),
        checkpoint_id=given.text("checkpointId"),
        codec=given.one_of("compression", tuple(CODECS)),
        batch_bytes=given.integer("batchBytes", 512 << 10, least=1),
        object_bytes=given.integer("objectBytes", 64 << 20, least=1 << 16, most=1 << 30),
        lease_ms=given.integer("leaseMs", _LEASE_MS, least=1000),
    )


def _check_stream(given: GivenOptions, *, writer_id: str, has_batch: bool) -> None:
    if not writer_id:
        raise given.invalid(
            "writerId",
            "a stream needs one, under which its batches are remembered",
            'for example .option("writerId", "delays-by-hour"); keep it with the checkpoint',
        )
    if has_batch:
        raise given.invalid("batchId", "the batches of a stream have Spark's numbers")
    if not given.text("checkpointLocation"):
        raise given.invalid(
            "checkpointLocation",
            "it is missing, and tells batches that are run again from new ones",
            'give it by .option("checkpointLocation", ...), not by the session\'s configuration',
        )
