"""The commands of a streams group's saves, each of bounded size. Pure."""

from collections.abc import Iterator

from msgspec.structs import replace

from penstock.groups.member_saves import parts_of
from penstock.groups.streams.durable import encode_group
from penstock.groups.streams.messages import SaveStreams
from penstock.groups.streams.roster import STREAMS_PROTOCOL_TYPE
from penstock.state.commands import SaveMembers
from penstock.state.rows import GroupKind


def streams_commands(
    save: SaveStreams, *, group_id: str, shard_epoch: int
) -> Iterator[SaveMembers]:
    """Cut a save into commands, to be journaled one after the other."""
    for part in parts_of(save.rows.items(), save.removed):
        yield SaveMembers(
            group_id=group_id,
            generation=save.epoch,
            protocol_type=STREAMS_PROTOCOL_TYPE,
            kind=GroupKind.STREAMS,
            empty=save.is_empty and part.is_last,
            state=encode_group(replace(save.state, is_partial=not part.is_last)),
            rows=part.rows,
            removed=part.removed,
            shard_epoch=shard_epoch,
        )
