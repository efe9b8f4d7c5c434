"""What was read is cut at the last stable offset, wherever its views begin and end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.fetch.committed import below
from penstock.records.batch import LENGTH_END
from penstock.records.decode import Record
from penstock.records.encode import encode_batch


def stored(base_offset: int, size: int) -> bytes:
    record = Record(offset_delta=0, timestamp=1, key=None, value=b"x" * size, headers=())
    batch = bytearray(encode_batch([record]))
    batch[:8] = base_offset.to_bytes(8, "big")
    return bytes(batch)


@given(st.data())
def test_the_batches_below_an_offset_are_left_however_views_cut_them(data: st.DataObject) -> None:
    batches = [
        stored(number, data.draw(st.integers(0, 40)))
        for number in range(data.draw(st.integers(0, 5)))
    ]
    whole = b"".join(batches)
    read = whole[: data.draw(st.integers(0, len(whole)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(read)), max_size=8)))
    views = [
        memoryview(read)[start:end]
        for start, end in zip([0, *cuts], [*cuts, len(read)], strict=True)
    ]
    end = data.draw(st.integers(0, len(batches)))
    found = b"".join(below(views, end))
    wanted = b"".join(batches[:end])
    if len(read) >= len(wanted):
        assert found == wanted
    else:
        # The last one is cut. If that is in its first bytes, nothing may be left of it.
        assert read.startswith(found)
        assert len(read) - len(found) < LENGTH_END


def test_a_batch_that_begins_where_a_view_ends_is_looked_at() -> None:
    first, second = stored(7, 3), stored(8, 3)
    views = [memoryview(first), memoryview(second[:4]), memoryview(second[4:])]
    assert b"".join(below(views, 9)) == first + second
    assert b"".join(below(views, 8)) == first
    assert below(views, 7) == []
