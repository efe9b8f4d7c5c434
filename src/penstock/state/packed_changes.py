"""Changes and answers, as the workers of a host send them one another. Pure.

See docs/formats/worker-socket.md.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey
from penstock.model.malformed import MALFORMED
from penstock.state import changes
from penstock.state.answers import AnyAnswer
from penstock.state.changes import AgentSeen, Change, HeadMoved

_encoder = msgspec.msgpack.Encoder()
_answers = msgspec.msgpack.Decoder(list[AnyAnswer])

_KINDS: Final[tuple[type[Change], ...]] = (
    changes.HeadMoved,
    changes.AgentSeen,
    changes.RunsMoved,
    changes.TopicChanged,
    changes.TopicDeleted,
    changes.ClusterConfigsChanged,
    changes.AgentChanged,
    changes.AgentRemoved,
    changes.ShardMoved,
    changes.LevelChanged,
    changes.HistoryChanged,
    changes.DigestAsked,
    changes.DigestTold,
    changes.OpenMoved,
    changes.OffsetsSettled,
    changes.MarkersWritten,
    changes.AclsChanged,
    changes.GroupConfigsChanged,
    changes.CredentialChanged,
    changes.QuotasChanged,
    changes.ApiKeyChanged,
)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}


def pack_changes(found: Sequence[Change]) -> list[list[Any]]:
    """Changes as a message carries them. The first two kinds are nearly all there are."""
    packed: list[list[Any]] = []
    for change in found:
        if type(change) is HeadMoved:
            packed.append([0, change.partition_key, change.log_start, change.next_offset])
        elif type(change) is AgentSeen:
            packed.append([1, change.agent_id, change.position])
        else:
            packed.append(
                [_NUMBERS[type(change)], msgspec.to_builtins(change, builtin_types=(bytes,))]
            )
    return packed


def unpack_changes(packed: list[list[Any]]) -> list[Change]:
    """The inverse of `pack_changes`."""
    found: list[Change] = []
    for number, *fields in packed:
        if number == 0:
            found.append(HeadMoved(PartitionKey(fields[0]), fields[1], fields[2]))
        elif number == 1:
            found.append(AgentSeen(fields[0], fields[1]))
        else:
            found.append(msgspec.convert(fields[0], _KINDS[number]))
    return found


def encode_answers(answers: Sequence[AnyAnswer]) -> bytes:
    """Answers as a message carries them."""
    return _encoder.encode(answers)


def decode_answers(packed: bytes) -> list[AnyAnswer]:
    """Invert `encode_answers`. Raises: CorruptDataError."""
    try:
        return _answers.decode(packed)
    except MALFORMED as error:
        raise CorruptDataError(
            "read answers",
            "worker socket",
            f"{len(bytes(packed))} bytes: {error}",
            "restart the workers",
        ) from error
