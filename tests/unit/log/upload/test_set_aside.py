"""A damaged run of the WAL is read again less and less often, and never given up."""

from penstock.log.findings import Damages
from penstock.log.upload.set_aside import REREAD, SetAside
from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey
from penstock.state.rows import StoredRun
from support.simulated.clock import ManualClock

RUN = StoredRun(PartitionKey(1), 5, 8, 1, "", 16, 300, 5, 3)
OTHER = StoredRun(PartitionKey(1), 8, 9, 1, "", 316, 100, 5, 1)


def test_waits_double_up_to_an_hour_and_begin_again_once_it_was_moved() -> None:
    clock = ManualClock()
    damages = Damages(clock=clock, partition_name=str, log_start=lambda _: 0)
    aside = SetAside(damages, clock)
    error = CorruptDataError("read", "WAL", "CRC-32C differs")
    wait_s = REREAD.first_s
    for _ in range(10):
        aside.add(RUN, error)
        assert aside.due_in_s() == wait_s
        assert (len(aside), aside.bytes) == (1, 300)
        clock.advance(wait_s - 1)
        assert aside.waits(RUN)
        assert not aside.waits(OTHER)
        clock.advance(1)
        assert not aside.waits(RUN)
        wait_s = min(2 * wait_s, REREAD.most_s)
    assert wait_s == REREAD.most_s
    aside.keep([RUN])
    assert len(aside) == 1
    aside.forget([RUN])
    assert aside.due_in_s() is None
    aside.add(RUN, error)
    assert aside.due_in_s() == REREAD.first_s
