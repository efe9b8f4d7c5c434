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
from penstock.replica import Replica  # noqa: E402
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
DIRECTORY: tuple[tuple[Command, ...], ...] = (
    (CreateEnvironment("default"), CreateEnvironment("other")),
    (AddKey("n1", "default", b"1" * 32, "admin", "first key"),),
    (AddKey("n2", "other", b"2" * 32, "read", ""), RevokeKey("n1"), RevokeKey("n3")),
)


def main() -> None:
    """Write the databases."""
    here = Path(__file__).parent
    for name, machine, entries, environment in (
        ("environment", EnvironmentMachine("default"), ENVIRONMENT, "default"),
        ("directory", DirectoryMachine(), DIRECTORY, ""),
    ):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "made.sqlite"
            with closing(Replica.open(path, machine)) as replica:
                for number, commands in enumerate(entries):
                    entry = Entry(environment, commands)  # type: ignore[arg-type]
                    replica.append(encode(entry), stamp_ms=1_800_000_000_000 + number)
                replica.checkpoint()
            target = here / f"{name}-{FORMAT_VERSION}.sqlite"
            target.write_bytes(path.read_bytes())
            print(target.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
