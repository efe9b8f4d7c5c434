"""Make the golden databases of this format version: `python tests/golden/authz/make.py`.

Once per format version, by the release that introduces it, and never again: every later release
must open exactly these and hold what they hold (tests/unit/authz/state/test_golden.py).
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from penstock.authz.state import shard_entries  # noqa: E402
from penstock.authz.state.directory import DirectoryMachine  # noqa: E402
from penstock.authz.state.entries import (  # noqa: E402
    AddKey,
    Begin,
    Clear,
    Command,
    CreateEnvironment,
    Entry,
    RevokeKey,
    encode,
)
from penstock.authz.state.environment import FORMAT_VERSION, EnvironmentMachine  # noqa: E402
from penstock.authz.state.shard import ShardMachine  # noqa: E402
from penstock.authz.state.shard_entries import Item, item  # noqa: E402
from penstock.order.protocol import EntryKey  # noqa: E402
from penstock.replica.replica import Replica  # noqa: E402
from support.authz import POLICY, delete, insert, set_policy, write  # noqa: E402

DECLARED = "actor User {} declare likes(User, User); declare is_on();"
ENVIRONMENT: tuple[tuple[Command, ...], ...] = (
    (Begin(b"goldenlg"),),
    (set_policy(DECLARED, 0, request=b"p" * 16),),
    (write(insert("likes", "User:a", "User:b"), insert("is_on")), Clear(b"c" * 16)),
    (set_policy(POLICY, 1),),
    (
        write(
            insert("has_role", "User:größe", "admin", "Organization:o"),
            insert("has_role", "User:b", "member", "Organization:o"),
            request=b"r" * 16,
        ),
        write(insert("likes", "User:a", "User:b")),
        write(delete("has_role", "User:b", "*", "*"), request=b"s" * 16),
        write(insert("has_role", "User:b", "member", "Organization:o"), request=b"r" * 16),
    ),
)
KEY = AddKey("n1", "default", b"1" * 32, "admin", "first key")
LOG = b"goldenlg"
SHARD: tuple[tuple[EntryKey, tuple[Item, ...]], ...] = (
    (EntryKey(1, 10, 0), (shard_entries.opening("golden-cluster", b"t" * 16, "golden"),)),
    (EntryKey(1, 10, 1), (item("", CreateEnvironment("default", LOG)), item("", KEY))),
    (EntryKey(2, 7, 0), (shard_entries.opening("golden-cluster", b"u" * 16, "golden"),)),
    (EntryKey(2, 7, 1), (item("default", set_policy(POLICY, 0)),)),
    (
        EntryKey(1, 10, 2),
        (
            item("default", write(insert("has_role", "User:b", "member", "Organization:o"))),
            item("missing", Clear(b"")),
            item("default", Clear(b"c" * 16)),
        ),
    ),
    (EntryKey(1, 10, 2), (item("default", Clear(b"")),)),
    (EntryKey(1, 10, 9), (item("default", Clear(b"")),)),
    (EntryKey(2, 7, 2), (shard_entries.claim(600_000),)),
    (EntryKey(1, 10, 3), (shard_entries.claim(600_000), item("", RevokeKey("n3")))),
    (EntryKey(1, 11, 0), (shard_entries.opening("golden-cluster", b"v" * 16, "golden"),)),
    (EntryKey(1, 11, 1), (shard_entries.new_history(1_800_000_000_000, b"history1"),)),
    (EntryKey(1, 10, 4), (item("default", Clear(b"")),)),
)
DIRECTORY: tuple[tuple[Command, ...], ...] = (
    (CreateEnvironment("default"), CreateEnvironment("other")),
    (AddKey("n1", "default", b"1" * 32, "admin", "first key"),),
    (AddKey("n2", "other", b"2" * 32, "read", ""), RevokeKey("n1"), RevokeKey("n3")),
)


def bodies(environment: str, entries: tuple[tuple[Command, ...], ...]) -> tuple[bytes, ...]:
    """The entries of a journal."""
    return tuple(encode(Entry(environment, commands)) for commands in entries)  # type: ignore[arg-type]


def main() -> None:
    """Write the databases that aren't there."""
    here = Path(__file__).parent
    shard = tuple(shard_entries.encode(key, 7, list(items)) for key, items in SHARD)
    for name, machine, entries in (
        ("environment", EnvironmentMachine("default"), bodies("default", ENVIRONMENT)),
        ("directory", DirectoryMachine(), bodies("", DIRECTORY)),
        ("shard", ShardMachine(), shard),
    ):
        target = here / f"{name}-{FORMAT_VERSION}.sqlite"
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "made.sqlite"
            with closing(Replica.open(path, machine)) as replica:  # type: ignore[arg-type]
                for number, body in enumerate(entries):
                    replica.append(body, stamp_ms=1_800_000_000_000 + number)
                replica.checkpoint()
            target.write_bytes(path.read_bytes())
            print(target.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
