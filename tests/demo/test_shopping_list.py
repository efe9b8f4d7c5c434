"""Three instances of the example on one journal; one of them is killed while it writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "shopping_list.py"
ROUNDS = 30


class Instance:
    """One process of the example."""

    def __init__(self, folder: Path, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), name],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def ask(self, command: str) -> str:
        assert self._process.stdout is not None
        self.send(command)
        return self._process.stdout.readline().strip()

    def kill(self) -> list[str]:
        """Kill it; the answers that it has still given."""
        assert self._process.stdout is not None
        self._process.kill()
        left = self._process.stdout.read().splitlines()
        self._process.wait(60)
        self._close()
        return left

    def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(120)
        self._close()
        return status

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[dict[str, Instance]]:
    started = {name: Instance(tmp_path, name) for name in ("one", "two", "three")}
    yield started
    for instance in started.values():
        instance.kill()


def test_the_example_is_short() -> None:
    assert len(SCRIPT.read_text("utf-8").splitlines()) < 60


def test_the_page_shows_the_examples_machine() -> None:
    page = (SCRIPT.parents[1] / "docs" / "replica.md").read_text("utf-8")
    source = SCRIPT.read_text("utf-8")
    machine = source[source.index("class ShoppingList") : source.index("def main")]
    assert machine.strip() in page


def test_an_instance_that_is_killed_loses_nothing_and_holds_up_nobody(
    instances: dict[str, Instance], tmp_path: Path
) -> None:
    one, two, three = (instances[name] for name in ("one", "two", "three"))
    assert one.ask("add milk 2") == "2 milk"
    assert two.ask("add milk") == "3 milk"
    assert three.ask("bought bread") == "bread isn't on the list"
    for count in range(1, ROUNDS + 1):
        two.send("add tea")
        if count == ROUNDS // 2:
            # By then some of its adds are answered, and some aren't.
            assert one.ask("add salt") == "1 salt"
    answered = len([line for line in two.kill() if line.endswith(" tea")])
    assert three.ask("add salt") == "2 salt"
    assert one.ask("bought milk") == "0 milk"
    # Its own last add comes after all of theirs, so that its copy has them.
    found = three.ask("add salt"), three.ask("list")
    assert found[0] == "3 salt"
    items = dict(reversed(item.split()) for item in found[1].split("; "))
    assert items.pop("salt") == "3"
    tea = int(items.pop("tea", "0"))
    assert answered <= tea <= ROUNDS
    assert not items
    two = instances["two"] = Instance(tmp_path, "two")
    assert two.ask("list") == found[1]
    assert two.ask("add tea") == f"{tea + 1} tea"
    for name in ("one", "two", "three"):
        assert instances[name].end() == 0
    del instances["one"], instances["two"], instances["three"]
