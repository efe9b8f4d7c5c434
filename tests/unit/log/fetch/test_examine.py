"""A run that is read past every cache is compared with all that the state says of it."""

import pytest

from penstock.log.checking import OTHERS
from penstock.log.findings import DamagedError
from support.cleaning import clean
from support.log_rig import Rig
from support.rot import object_path, runs_of
from unit.log.damage.test_scrub import FAST, scrub_all


async def test_whole_batches_of_another_partition_are_damage(rig: Rig) -> None:
    key, other = await rig.topic("t", 2)
    for number in range(3):
        await rig.append(key, b"k%d" % number)
        await rig.append(other, b"o%d" % number)
    await rig.drain()
    (one,), (two,) = runs_of(rig, key), runs_of(rig, other)
    path = object_path(rig, one)
    data = bytearray(path.read_bytes())
    data[two.position : two.position + two.length] = data[one.position : one.position + one.length]
    path.write_bytes(data)
    examiner = rig.log.reader.examiner
    await examiner.examine(one)
    with pytest.raises(DamagedError, match=OTHERS):
        await examiner.examine(two)


@pytest.mark.options(scrub_bytes_per_s=FAST)
async def test_gaps_of_compaction_in_a_partition_that_nobody_has_read_are_no_damage(
    rig: Rig,
) -> None:
    (key,) = await rig.topic("t", cleanup_policy="compact")
    for number in range(10):
        await rig.append(key, b"v", keys=[b"x" if number % 2 else b"%d" % number])
    await rig.drain()
    assert await clean(rig, key)
    rig.forget_memory()
    await scrub_all(rig)
    assert rig.log.scrubber.run_count == 1
    assert not rig.log.damages.known()
