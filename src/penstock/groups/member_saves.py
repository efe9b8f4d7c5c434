"""Decides which members of a group are journaled when, and which answers wait for that. Pure.

Events change members in memory. One save is under way at a time; what changes meanwhile goes with
the next. An answer is given once the journal has all that it may be made of.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.groups.messages import Reply

ROWS_AT_ONCE: Final = 500
"""Members of one command: what applies it does so in one go."""
BYTES_AT_ONCE: Final = 256 << 10
"""Bytes of members' rows of one command, but for the last row."""


class Begun(NamedTuple):
    """A save begins, of these members: those that changed, and those that left."""

    number: int
    dirty: tuple[str, ...]
    removed: tuple[str, ...]


class MemberSaves:
    """See the module."""

    __slots__ = (
        "_count",
        "_dirty",
        "_is_saving",
        "_next_waiting",
        "_removed",
        "_waiting",
        "is_dirty",
    )

    def __init__(self) -> None:
        self.is_dirty = False
        """Something is to be saved; a change of the group itself sets it."""
        self._dirty: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._count = 0
        self._is_saving = False
        self._waiting: list[Reply] = []
        self._next_waiting: list[Reply] = []

    @property
    def is_settled(self) -> bool:
        """The journal has all of it."""
        return not (self.is_dirty or self._is_saving)

    def put(self, member_id: str) -> None:
        """A member is new, or has changed."""
        self._removed.pop(member_id, None)
        self._dirty[member_id] = None
        self.is_dirty = True

    def remove(self, member_id: str) -> None:
        """A member has left."""
        self._dirty.pop(member_id, None)
        self._removed[member_id] = None
        self.is_dirty = True

    def reply(self, reply: Reply) -> tuple[Reply, ...]:
        """Keep an answer until the journal has what it is made of.

        Returns: the answer, where it waits for nothing.
        """
        if self.is_dirty:
            self._next_waiting.append(reply)
        elif self._is_saving:
            # It may be made of what is under way to the journal.
            self._waiting.append(reply)
        else:
            return (reply,)
        return ()

    def begin(self) -> Begun | None:
        """Begin a save; None: there is nothing to save, or one is under way."""
        if self._is_saving or not self.is_dirty:
            return None
        self._count += 1
        self._is_saving, self.is_dirty = True, False
        self._waiting, self._next_waiting = self._next_waiting, []
        begun = Begun(self._count, tuple(self._dirty), tuple(self._removed))
        self._dirty, self._removed = {}, {}
        return begun

    def saved(self) -> list[Reply]:
        """End a save that the journal has taken. Returns: the answers that waited for it."""
        self._is_saving = False
        waiting, self._waiting = self._waiting, []
        return waiting

    def give_up(self) -> list[Reply]:
        """Save nothing more. Returns: all answers that waited, which are not to be given."""
        waiting = self._waiting + self._next_waiting
        self._waiting, self._next_waiting = [], []
        self._is_saving = self.is_dirty = False
        return waiting


class Part(NamedTuple):
    """The part of a save that one command has."""

    rows: list[tuple[str, bytes]]
    removed: list[str]
    is_last: bool


def parts_of(
    rows: Iterable[tuple[str, bytes]], removed: tuple[str, ...], *, is_whole: bool = False
) -> Iterator[Part]:
    """Cut a save into parts of bounded size, to be journaled one after the other.

    All but the last command say that further ones follow, so that a coordinator that finds only
    some of them makes the group's targets again.

    Args:
        rows: members by id, as the journal is to have them.
        is_whole: all must be one command.
    """
    cut: list[list[tuple[str, bytes]]] = [[]]
    size = 0
    for row in rows:
        is_full = len(cut[-1]) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE
        if is_full and not is_whole:
            cut.append([])
            size = 0
        cut[-1].append(row)
        size += len(row[1])
    gone = [
        list(removed[start : start + ROWS_AT_ONCE])
        for start in range(0, len(removed), ROWS_AT_ONCE)
    ]
    # Members that left go first: an instance id must not be two members' rows.
    parts: list[tuple[list[tuple[str, bytes]], list[str]]] = [([], some) for some in gone[:-1]]
    parts.append((cut[0], gone[-1] if gone else []))
    parts += [(some, []) for some in cut[1:]]
    for index, (some_rows, some_removed) in enumerate(parts):
        yield Part(some_rows, some_removed, index == len(parts) - 1)
