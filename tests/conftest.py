"""For all tests: unit tests run in random order, async ones on loops of their own, and Hypothesis
has our profiles.

A seed is printed at the start; `--order-seed N` runs that order again, `--order-seed off` runs
tests as they are written. Suites against a server keep their order: their files say how a server
lives through them.
"""

import gc
import os
import random
from collections.abc import Generator
from pathlib import Path

import pytest

from penstock.system import heard
from support import examples
from support.class_archive import LEAN

pytest_plugins = ("support.async_tests",)

UNIT = Path(__file__).parent / "unit"

examples.register_profiles()

# Collecting the unit tests makes a million objects that stay. To look through them again and again
# took a third of the collection's time, and half a second of each later look at all objects.
gc.disable()

os.environ.setdefault("SPARK_SUBMIT_OPTS", LEAN)


@pytest.fixture(autouse=True)
def _each_cause_has_its_line() -> None:
    """A line that an earlier test has had is not left out."""
    heard.forget()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-seed", default="", help="a number, or off")
    parser.addoption("--rewrite", action="store_true", help="write golden dialogues again")


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("--order-seed") or os.environ.get(_SHARED_SEED)
    seed = chosen or str(random.SystemRandom().randrange(1 << 32))
    config.stash[_SEED] = seed
    # Processes that share the tests (-n) must have them in one order.
    os.environ[_SHARED_SEED] = seed


_SEED = pytest.StashKey[str]()
_SHARED_SEED = "PYTEST_ORDER_SEED"


def pytest_report_header(config: pytest.Config) -> str:
    return f"order seed: {config.stash[_SEED]} (repeat with --order-seed)"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    # With -q there is no header, and the seed matters when something failed.
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(f"order seed: {config.stash[_SEED]}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.stash[_SEED]
    if seed == "off":
        return
    places = [index for index, item in enumerate(items) if UNIT in item.path.parents]
    shuffled = [items[index] for index in places]
    # Files are shuffled, then tests within each: a module's fixtures are still made once.
    generator = random.Random(seed)
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in shuffled:
        by_file.setdefault(item.path, []).append(item)
    files = list(by_file.values())
    generator.shuffle(files)
    for group in files:
        generator.shuffle(group)
    for index, item in zip(places, (item for group in files for item in group), strict=True):
        items[index] = item
