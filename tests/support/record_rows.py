"""Records that are broken in one way each, and strategies of records that mostly are right."""

from hypothesis import strategies as st

from support.raw_batches import field, good, raw_varint, record, varint

HEADER_OF_ONE = varint(1) + field(b"name") + field(b"value")

BROKEN: dict[str, tuple[bytes, int, str]] = {
    "count too large": (good(3), 4, "end after 3 of 4"),
    "count too small": (good(3), 2, "after the last of 2"),
    "a byte more": (good(3) + b"\0", 3, "after the last of 3"),
    "no records": (b"", 1, "end after 0 of 1"),
    "a cut record": (good(3)[:-1], 3, "end after 2 of 3"),
    "a cut length": (good(2) + b"\x80", 3, "end after 2 of 3"),
    "a length that is too large": (
        good(1) + record(1, length=40) + good(20),
        22,
        "record 1: its length is 40 bytes",
    ),
    "a length that is too small": (good(1) + record(1, length=5), 2, "record 1"),
    "a length that is too small for its fields": (record(0, length=3), 1, "record 0"),
    "a length of nothing": (varint(0) * 9, 9, "record 0"),
    "a negative length": (varint(-1) + bytes(20), 1, "length is negative"),
    "a negative key's": (record(0, key=varint(-2)), 1, "the key's length is -2"),
    "a negative value's": (record(0, value=varint(-5)), 1, "the value's length is -5"),
    "a key past its record": (record(0, key=varint(50)), 1, "record 0"),
    "a value past its record": (record(0, value=varint(50)) + good(90), 91, "record 0"),
    "negative headers": (record(0, headers=varint(-1)), 1, "-1 headers"),
    "more headers than bytes": (record(0, headers=varint(1000)) + good(9), 10, "record 0"),
    "2^31 headers": (record(0, headers=varint(2**31 - 1)), 1, "more headers"),
    "a header without a name": (
        record(0, headers=varint(1) + varint(-1) + field(b"v")),
        1,
        "header's name is -1",
    ),
    "a header that is a null name": (
        record(0, headers=varint(1) + varint(-1)),
        1,
        "header's name is -1",
    ),
    "a negative header's": (
        record(0, headers=varint(1) + field(b"n") + varint(-7)),
        1,
        "header's value is -7",
    ),
    "headers that stop early": (record(0, headers=varint(2) + HEADER_OF_ONE[1:]), 1, "record 0"),
    "bytes after the headers": (record(0, headers=HEADER_OF_ONE + b"\0"), 1, "its fields end -1"),
    "a length of six bytes": (b"\x80\x80\x80\x80\x80\x01" + bytes(9), 1, "more than 32 bits"),
    "a length above 32 bits": (raw_varint(1 << 33) + bytes(9), 1, "more than 32 bits"),
    "a key's length of six bytes": (
        record(0, key=b"\x80\x80\x80\x80\x80\x00"),
        1,
        "more than 32 bits",
    ),
    "a time of eleven bytes": (record(0, time_delta=b"\x80" * 10 + b"\0"), 1, "more than 64 bits"),
    "a time above 64 bits": (record(0, time_delta=b"\xff" * 9 + b"\x02"), 1, "more than 64 bits"),
    "all deltas 0": (record(0) * 3, 3, "record 1: offset delta 0; it must be 1"),
    "deltas from 1": (record(1) + record(2), 2, "record 0: offset delta 1; it must be 0"),
    "deltas with a gap": (record(0) + record(2), 2, "record 1: offset delta 2"),
    "a negative delta": (record(0) + record(-1), 2, "record 1: offset delta -1"),
}

SMALL = st.integers(-3, 300)
VARINTS = SMALL.map(varint) | st.integers(-(2**63), 2**63 - 1).map(varint)
FIELDS = (st.none() | st.binary(max_size=150)).map(field)
HEADERS = st.lists(st.tuples(st.binary(max_size=70).map(field), FIELDS), max_size=3).map(
    lambda rows: varint(len(rows)) + b"".join(name + value for name, value in rows)
)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "key": FIELDS | VARINTS,
        "value": FIELDS | VARINTS,
        "headers": HEADERS | VARINTS,
        "time_delta": VARINTS,
        "offset_delta": VARINTS,
        "length": SMALL,
    },
)
RIGHT_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "key": FIELDS,
        "value": FIELDS,
        "headers": HEADERS,
        "time_delta": st.integers(-(10**6), 10**6).map(varint),
    },
)
