"""Reading topics as a member of a group, which commits what was printed."""

import contextlib
import time
from typing import Final

from penstock.cli.client.cluster import Client
from penstock.cli.client.groups import committed_offsets
from penstock.cli.client.member import Member
from penstock.cli.client.offsets import leaders_of
from penstock.cli.client.patience import Patience
from penstock.cli.reading import Batches, Reading, Start, poll, start_positions
from penstock.model.errors import RetryableError

COMMIT_INTERVAL_S: Final = 5.0


def read_as_member(
    client: Client,
    reading: Reading,
    names: tuple[str, ...],
    group: str,
    start: Start,
    *,
    patience: Patience,
    commit_interval_s: float = COMMIT_INTERVAL_S,
) -> Batches:
    """Read what the group assigns, from what is committed on, else from `start`.

    The caller may let this wait longer than the member's session lasts: the group then goes on
    without it, it joins again, and what was printed meanwhile is printed once more by the member
    that has it assigned.

    Raises:
        RetryableError: a topic can't be looked up, or patience is at its end.
        RefusedError: a topic does not exist, or the group doesn't want this member.
    """
    for name in names:
        client.topic(name)  # says at once which one does not exist
    member = Member(client, group, names)
    try:
        is_in, committed_s = False, time.monotonic()
        while True:
            try:
                if not is_in:
                    _take_assignment(client, reading, member, start)
                    is_in = True
                yield from poll(client, reading)
                # Before a commit: a group that rebalances says so here, and still takes one.
                is_in = member.keep()
                if not is_in or time.monotonic() - committed_s >= commit_interval_s:
                    is_in = _commit(member, reading) and is_in
                    committed_s = time.monotonic()
                patience.succeeded()
            except RetryableError as error:
                member.close()  # the coordinator may be another one by now
                patience.bear(error)
    finally:
        try:
            _commit(member, reading)
        finally:
            with contextlib.suppress(RetryableError):
                member.leave()
            member.close()


def _take_assignment(client: Client, reading: Reading, member: Member, start: Start) -> None:
    # Not committed by now means never: it may be another member's soon.
    reading.printed.clear()
    assigned = member.join()
    reading.leaders.clear()
    for name in sorted({partition.topic for partition in assigned}):
        leaders = leaders_of(client.topic(name))
        reading.leaders.update(
            {partition: leaders[partition] for partition in assigned if partition.topic == name}
        )
    known = committed_offsets(member.connection, member.group_id, assigned) if assigned else {}
    unknown = {
        partition: leader for partition, leader in reading.leaders.items() if partition not in known
    }
    reading.positions = known | start_positions(client, unknown, start)


def _commit(member: Member, reading: Reading) -> bool:
    """Whether the member is still one of the group."""
    if not member.commit(reading.printed):
        return False
    reading.printed.clear()
    return True
