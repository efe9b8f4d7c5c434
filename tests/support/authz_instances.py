"""Instances of the authorization service that share a journal, as real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.authz import AuthzProcess


@contextmanager
def instances(
    folder: Path, url: str, name: str, count: int, *more: str
) -> Iterator[list[AuthzProcess]]:
    """So many instances, started one after another; those that still run are stopped."""
    folder.mkdir(exist_ok=True)
    made = [
        AuthzProcess(
            folder / f"data-{number}",
            folder / f"log-{number}",
            "--test-key",
            "--journal",
            url,
            "--journal-name",
            name,
            *more,
        )
        for number in range(count)
    ]
    try:
        for each in made:
            each.start()
        yield made
    finally:
        for each in made:
            if each.process is not None and each.process.poll() is None:
                each.process.kill()
                each.process.wait(60)
