"""A member of a share group, as a value. Pure."""

from msgspec import Struct

from penstock.groups.consumer.partitions import NONE, Partitions


class ShareMember(Struct, frozen=True):
    """A member. It has its partitions at once: nothing is revoked, since others may have them,
    too."""

    member_id: str
    client_id: str = ""
    client_host: str = ""
    rack: str = ""
    topics: tuple[str, ...] = ()
    """Names that it subscribes to, sorted."""
    epoch: int = 0
    """The target epoch that it last heard of."""
    previous_epoch: int = 0
    """The one before: a heartbeat of it is the answer's, which was lost."""
    assigned: Partitions = NONE
