"""Look-ups by time equal a look at every record: out of order, compressed, stamped, trimmed."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from support.log_rig import NOW, Rig, run_rig

BATCHES = st.lists(
    st.tuples(st.integers(-9, 9), st.integers(1, 3), st.sampled_from(("none", "gzip", "zstd"))),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25)
@given(BATCHES, st.booleans(), st.integers(0, 6))
def test_they_equal_a_look_at_every_record(
    batches: list[tuple[int, int, str]], drain: bool, trim: int
) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        stamps: list[tuple[int, int]] = []
        for index, (shift, count, codec) in enumerate(batches):
            values = [b"v"] * count
            await rig.append(key, *values, timestamp=NOW + shift, codec=codec)
            stamps += [(len(stamps) + i, NOW + shift + i) for i in range(count)]
            if drain and index % 3 == 0:
                await rig.drain()
        start = min(trim, len(stamps))
        assert await rig.log.delete_records([(key, start)]) == [start]
        stamps = stamps[start:]
        rig.forget_memory()
        for at in range(NOW - 11, NOW + 14):
            expected = next((stamp for stamp in stamps if stamp[1] >= at), None)
            assert await rig.log.offset_for_time(key, at) == expected, at - NOW
        greatest = max(stamps, key=lambda stamp: (stamp[1], -stamp[0]), default=None)
        assert await rig.log.offset_of_max_timestamp(key) == greatest

    with tempfile.TemporaryDirectory() as folder:
        run_rig(Path(folder), test)
