"""Where a table's offsets are found, and their format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError
from penstock.pipeline.tables.offsets import (
    INLINE_BYTES_MAX,
    OFFSETS_PROPERTY,
    SILENT_PROPERTY,
    Holdings,
    Lineage,
    decode_offsets,
    encode_file,
    encode_offsets,
    encode_silent,
    find_held,
    is_property_current,
    offsets_file,
)

GOLDEN = '{"version":1,"topics":{"aa":{"0":5,"2":0,"10":7},"bb":{}}}'


def test_the_format_stays() -> None:
    topics = {"bb": {}, "aa": {10: 7, 0: 5, 2: 0}}
    assert encode_offsets(Holdings(topics)) == GOLDEN
    assert decode_offsets(GOLDEN, subject="") == Holdings(topics)


def test_the_format_with_leader_epochs_stays() -> None:
    holdings = Holdings({"aa": {0: 5, 2: 1}}, {"aa": {2: 0, 0: 9}})
    text = '{"version":1,"topics":{"aa":{"0":5,"2":1}},"epochs":{"aa":{"0":9,"2":0}}}'
    assert encode_offsets(holdings) == text
    assert decode_offsets(text, subject="") == holdings


NUMBERS = st.dictionaries(st.text(), st.dictionaries(st.integers(0), st.integers(0, 2**62)))


@pytest.mark.slow
@given(NUMBERS, NUMBERS)
def test_what_goes_in_comes_out(
    topics: dict[str, dict[int, int]], epochs: dict[str, dict[int, int]]
) -> None:
    holdings = Holdings(topics, epochs)
    assert decode_offsets(encode_offsets(holdings), subject="") == holdings


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"version":2,"topics":{}}',
        '{"version":1,"topics":{"a":{"x":1}}}',
        '{"version":1,"topics":{},"epochs":{"a":{"x":1}}}',
        "[]",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="read a table's offsets t"):
        decode_offsets(text, subject="t")


def offsets(number: int) -> dict[str, str]:
    return {OFFSETS_PROPERTY: encode_offsets(Holdings({"t": {0: number}}))}


def lineage(*summaries: dict[str, str], newest: int = 0, whole: bool = True) -> Lineage:
    """With sequence numbers one below the other, down to 1 where it is whole."""
    newest = newest or len(summaries)
    sequences = range(newest, newest - len(summaries), -1)
    return Lineage(sequences=sequences, summaries=summaries, is_whole=whole)


CUT = lineage({}, newest=7, whole=False)
SILENT_AT_7 = encode_silent(CUT, Holdings({"t": {0: 5}}), known=None, left=[7], subject="")
assert SILENT_AT_7 is not None
GOLDEN_SILENT = '{"version":1,"groups":[{"sequences":[7],"topics":{"t":{"0":5}}}]}'


@pytest.mark.parametrize(
    ("found_lineage", "properties", "progress", "found", "source"),
    [
        (lineage(offsets(3), offsets(2)), offsets(9), {0: 9}, {0: 3}, "snapshot"),
        (lineage({}, offsets(2)), offsets(9), {0: 9}, {0: 2}, "snapshot"),
        # A rollback to before the first commit: whatever else says, the table holds nothing.
        (lineage({}), offsets(9), {0: 9}, {}, ""),
        (lineage(), offsets(9), {0: 9}, {}, ""),
        (CUT, offsets(9), {0: 1}, {0: 9}, "property"),
        (CUT, {}, {0: 1}, {0: 1}, "progress"),
        (CUT, {}, None, {}, ""),
        # A rollback to somebody's snapshot, whose ancestors with offsets are expired.
        (CUT, offsets(9) | {SILENT_PROPERTY: SILENT_AT_7}, {0: 9}, {0: 5}, "silent"),
        (
            lineage({}, {}, newest=8, whole=False),
            offsets(9) | {SILENT_PROPERTY: SILENT_AT_7},
            {0: 9},
            {0: 5},
            "silent",
        ),
        (
            lineage({}, newest=8, whole=False),
            offsets(9) | {SILENT_PROPERTY: SILENT_AT_7},
            {0: 1},
            {0: 9},
            "property",
        ),
    ],
)
def test_the_nearest_snapshot_that_says_it_is_believed(
    found_lineage: Lineage,
    properties: dict[str, str],
    progress: dict[int, int] | None,
    found: dict[int, int],
    source: str,
) -> None:
    held = find_held(
        "t", table="x", lineage=found_lineage, properties=properties, progress=progress
    )
    assert (held.offsets, held.source) == (found, source)


def test_offsets_of_another_topic_are_none_of_this_one() -> None:
    summary = {OFFSETS_PROPERTY: encode_offsets(Holdings({"old": {0: 3}}))}
    held = find_held("new", table="x", lineage=lineage(summary), properties={}, progress=None)
    assert held.offsets == {}
    assert held.holdings == Holdings({"old": {0: 3}})


@pytest.mark.parametrize(
    ("found_lineage", "properties", "is_current"),
    [
        (lineage({}, offsets(3), offsets(2)), offsets(3), True),
        (lineage({}, offsets(2)), offsets(3), False),
        (lineage(offsets(2), newest=9, whole=False), {}, False),
        # Rolled back to before the first commit.
        (lineage({}), offsets(3), False),
        (lineage({}), {}, True),
        (CUT, offsets(3), True),
        (CUT, offsets(3) | {SILENT_PROPERTY: SILENT_AT_7}, False),
    ],
)
def test_whether_snapshots_may_go_since_the_property_says_the_same(
    found_lineage: Lineage, properties: dict[str, str], is_current: bool
) -> None:
    found = is_property_current(found_lineage, properties, table="t")
    assert found == is_current
    if not found:
        return
    only_newest = Lineage(
        sequences=found_lineage.sequences[:1],
        summaries=found_lineage.summaries[:1],
        is_whole=False,
    )
    before, after = (
        find_held("t", table="t", lineage=each, properties=properties, progress=None).offsets
        for each in (found_lineage, only_newest)
    )
    assert before == after


def test_what_silent_snapshots_held_is_kept_as_long_as_they_are() -> None:
    assert SILENT_AT_7 == GOLDEN_SILENT
    assert encode_silent(lineage(offsets(1)), Holdings(), known=None, left=[1], subject="") is None
    later = lineage({}, {}, offsets(6), newest=12, whole=False)

    def added(left: list[int]) -> str | None:
        return encode_silent(
            later, Holdings({"t": {0: 6}}), known=SILENT_AT_7, left=left, subject=""
        )

    of_later = '{"sequences":[11,12],"topics":{"t":{"0":6}}}'
    assert added([7, 10, 11, 12]) == GOLDEN_SILENT.removesuffix("]}") + f",{of_later}]}}"
    assert added([10, 11, 12]) == f'{{"version":1,"groups":[{of_later}]}}'
    again = encode_silent(CUT, Holdings({"t": {0: 4}}), known=SILENT_AT_7, left=[7], subject="")
    assert again == GOLDEN_SILENT.replace("5", "4")


@pytest.mark.parametrize(
    "text",
    ["{", '{"version":2,"groups":[]}', GOLDEN_SILENT.replace('"0"', '"x"'), "[]"],
)
def test_notes_that_are_no_such_are_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="read a table's offsets x"):
        find_held("t", table="x", lineage=CUT, properties={SILENT_PROPERTY: text}, progress=None)


def test_silent_snapshots_hold_leader_epochs_too() -> None:
    text = encode_silent(
        CUT, Holdings({"t": {0: 5}}, {"t": {0: 9}}), known=None, left=[7], subject=""
    )
    assert text is not None
    held = find_held("t", table="x", lineage=CUT, properties={SILENT_PROPERTY: text}, progress=None)
    assert (held.offsets, held.epochs, held.source) == ({0: 5}, {0: 9}, "silent")


class TableModel:
    """Snapshots of ours and of others: sequence number -> (parent, what it says, what it holds)."""

    def __init__(self) -> None:
        self.snapshots: dict[int, tuple[int, dict[str, str], int]] = {}
        self.current = self.last = 0
        self.properties: dict[str, str] = {}

    def lineage(self) -> Lineage:
        found, at = [], self.current
        while at in self.snapshots:
            found.append(at)
            at = self.snapshots[at][0]
        return Lineage(
            sequences=found,
            summaries=[self.snapshots[number][1] for number in found],
            is_whole=not found or found[-1] == 1,
        )

    def holds(self) -> int:
        return self.snapshots[self.current][2] if self.current else 0

    def found(self) -> int:
        held = find_held(
            "t", table="t", lineage=self.lineage(), properties=self.properties, progress=None
        )
        return held.offsets.get(0, 0)

    def add(self, summary: dict[str, str], holds: int) -> None:
        self.last += 1
        self.snapshots[self.last] = (self.current, summary, holds)
        self.current = self.last

    def commit(self) -> None:
        before = self.found()
        silent = encode_silent(
            self.lineage(),
            Holdings({"t": {0: before}}),
            known=self.properties.get(SILENT_PROPERTY),
            left=self.snapshots.keys(),
            subject="t",
        )
        self.properties |= offsets(before + 1)
        if silent is not None:
            self.properties[SILENT_PROPERTY] = silent
        self.add(offsets(before + 1), before + 1)

    def expire(self, chosen: set[int]) -> None:
        """After a rollback, and before our next commit, all that leads to the current one stays."""
        kept = {self.current}
        if not is_property_current(self.lineage(), self.properties, table="t"):
            kept |= set(self.lineage().sequences)
        for number in chosen - kept:
            self.snapshots.pop(number, None)


@given(st.data())
def test_whatever_is_rolled_back_and_expired_the_tables_offsets_are_those_of_its_rows(
    data: st.DataObject,
) -> None:
    table = TableModel()
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["ours", "theirs", "rollback", "expire"])):
            case "ours":
                table.commit()
            case "theirs":
                table.add({}, table.holds())
            case "rollback" if table.snapshots:
                # To an ancestor: Iceberg's procedure refuses anything else.
                table.current = data.draw(st.sampled_from(table.lineage().sequences))
            case "expire" if table.snapshots:
                table.expire(data.draw(st.sets(st.sampled_from(sorted(table.snapshots)))))
            case _:
                continue
        assert table.found() == table.holds()


def test_a_document_in_a_file_is_read_where_it_is_named() -> None:
    held = Holdings({"t": dict.fromkeys(range(1000), 7)}, {"t": dict.fromkeys(range(1000), 0)})
    text = encode_file("s3://lake/t/penstock-offsets/a.json")
    assert len(text) < 100 < INLINE_BYTES_MAX < len(encode_offsets(held))
    files = {"s3://lake/t/penstock-offsets/a.json": encode_offsets(held).encode()}
    assert decode_offsets(text, subject="t", read=files.__getitem__) == held
    assert offsets_file(text) in files
    assert offsets_file(encode_offsets(held)) == offsets_file(None) == offsets_file("x") == ""
    for content in (b"\xff", b"{}", text.encode()):
        with pytest.raises(CorruptDataError):
            decode_offsets(text, subject="t", read=lambda _, found=content: found)
    with pytest.raises(CorruptDataError, match="version 2"):
        decode_offsets(text, subject="t")
