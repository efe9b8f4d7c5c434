"""The newest record of a key counts. Pure.

Within a partition that is the highest offset. Between partitions, where a key has moved (partitions
were added) or was written to several, the later timestamp, then the higher offset.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.tables.key_identity import key_identity

_NO_TIME: Final = -(2**63)


def newest_rows(rows: pa.Table, *, prefix: str) -> pa.Table:
    """One row per key.

    Args:
        rows: columns key, partition, offset and timestamp with `prefix` before their names, and
            others; keys are never null.
    """
    places = pa.table(
        {
            "key": key_identity(rows.column(f"{prefix}key")),
            "partition": rows.column(f"{prefix}partition"),
            "offset": rows.column(f"{prefix}offset"),
            "time": pc.fill_null(
                rows.column(f"{prefix}timestamp").cast(pa.int64()), pa.scalar(_NO_TIME, pa.int64())
            ),
            "row": pa.array(np.arange(rows.num_rows)),
        }
    )
    places = _last(
        places.sort_by([("partition", "ascending"), ("offset", "ascending")]), ["partition", "key"]
    )
    places = _last(
        places.sort_by(
            [("time", "ascending"), ("offset", "ascending"), ("partition", "ascending")]
        ),
        ["key"],
    )
    return rows.take(places.column("row"))


def _last(places: pa.Table, by: list[str]) -> pa.Table:
    """The last row of each group."""
    numbered = places.append_column("place", pa.array(np.arange(places.num_rows)))
    groups = numbered.group_by(by, use_threads=False).aggregate([("place", "max")])
    return places.take(groups.column("place_max"))
