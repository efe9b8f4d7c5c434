"""Virtual time for all async tests, and an option of the golden dialogues."""

import inspect

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write golden dialogues again")


@pytest.fixture(autouse=True)
def _in_virtual_time(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("virtual_loop")
