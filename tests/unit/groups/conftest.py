"""Virtual time for all async tests."""

import inspect

import pytest


@pytest.fixture(autouse=True)
def _in_virtual_time(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("virtual_loop")
