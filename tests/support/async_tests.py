"""The pytest plugin that runs `async def` tests and fixtures on an event loop of the test's own.

A test whose fixtures include `virtual_loop` runs in virtual time; one with `either_loop`
on asyncio's and on uvloop's; all others on asyncio's loop. A property has a new
loop for each example. `docs/decisions/0023` says why this is not a dependency.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import Any, Protocol

import pytest
import uvloop

from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualLoop, VirtualRunner

DEADLINE_S = 300.0
"""What hangs fails, in seconds of the test's loop; in virtual time a stuck loop fails by itself."""
FAULTS_OF_ASYNCIO = (
    # It calls this twice, and fails the second time, where `resume_writing` closes a transport.
    "_SelectorSocketTransport._call_connection_lost(None)",
    # Python 3.11 asks a cancelled task of `start_server` for its exception.
    "StreamReaderProtocol.connection_made.<locals>.callback(",
)


class LoopRunner(Protocol):
    """What `asyncio.Runner` and `VirtualRunner` have in common."""

    def run(self, main: Coroutine[Any, Any, Any], /) -> Any:
        """Run to its end on the loop."""
        ...


@pytest.fixture
def virtual_runner(request: pytest.FixtureRequest) -> Iterator[VirtualRunner]:
    """The runner of a test in virtual time."""
    with VirtualRunner(SeededRandom(seed_of(request))) as runner:
        yield runner
        assert not runner.loop.faults, "\n".join(runner.loop.faults)


@pytest.fixture
def virtual_loop(virtual_runner: VirtualRunner) -> VirtualLoop:
    """The virtual loop that the test and its async fixtures run on."""
    return virtual_runner.loop


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def either_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes the loop of a test that runs on both: servers run on uvloop, whose transports aren't
    asyncio's."""
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    return factory


@pytest.fixture
def loop_runner(request: pytest.FixtureRequest) -> Iterator[LoopRunner]:
    """The runner of this test's loop."""
    if "virtual_loop" in request.fixturenames:
        yield request.getfixturevalue("virtual_runner")
        return
    chosen = "either_loop" in request.fixturenames
    factory = request.getfixturevalue("either_loop") if chosen else None
    faults: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        yield runner
    assert not [fault for fault in faults if not _is_asyncios(fault["message"])], faults


def _is_asyncios(message: str) -> bool:
    return any(known in message for known in FAULTS_OF_ASYNCIO)


def seed_of(request: pytest.FixtureRequest) -> int:
    """What a test in virtual time draws by: its parameter `seed`, `@pytest.mark.seed(7)` or 1."""
    marker = request.node.get_closest_marker("seed")
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    seed: int = marker.args[0] if marker else parameters.get("seed", 1)
    return seed


def options_of(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Keywords for the rig of a test: of `@pytest.mark.options(...)` at the test and its module."""
    markers = list(request.node.iter_markers("options"))
    return {name: value for marker in reversed(markers) for name, value in marker.kwargs.items()}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on its loop; leave others to pytest."""
    test = pyfuncitem.obj
    if hasattr(test, "hypothesis"):
        if inspect.iscoroutinefunction(test.hypothesis.inner_test):
            test.hypothesis.inner_test = _on_new_loops(test.hypothesis.inner_test)
        return None
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    runner: LoopRunner = pyfuncitem._request.getfixturevalue("loop_runner")
    runner.run(_in_time(test(**arguments), runner))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Let an async fixture be made and ended on the loop of its test."""
    make = fixturedef.func
    if inspect.isasyncgenfunction(make):
        on_loop = _generator_of(make, request.getfixturevalue("loop_runner"))
    elif inspect.iscoroutinefunction(make):
        on_loop = _function_of(make, request.getfixturevalue("loop_runner"))
    else:
        return (yield)
    # pytest reads this attribute when it makes the fixture, and offers no other way in.
    fixturedef.func = on_loop  # type: ignore[misc]
    try:
        return (yield)
    finally:
        fixturedef.func = make  # type: ignore[misc]


def _generator_of(make: Callable[..., Any], runner: LoopRunner) -> Callable[..., Any]:
    def fixture(**arguments: Any) -> Iterator[Any]:
        generator = make(**arguments)
        yield runner.run(_next(generator))
        if runner.run(_next(generator)) is not _ENDED:
            raise AssertionError(f"the fixture {make.__name__} yields twice")

    return fixture


async def _next(generator: AsyncGenerator[Any, None]) -> Any:
    return await anext(generator, _ENDED)


_ENDED = object()


def _function_of(make: Callable[..., Any], runner: LoopRunner) -> Callable[..., Any]:
    def fixture(**arguments: Any) -> Any:
        return runner.run(make(**arguments))

    return fixture


def _on_new_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def example(**arguments: Any) -> None:
        with asyncio.Runner() as runner:
            runner.run(_in_time(test(**arguments), runner))

    return example


async def _in_time(test: Coroutine[Any, Any, None], runner: LoopRunner) -> None:
    if isinstance(runner, VirtualRunner):
        await test
    else:
        async with asyncio.timeout(DEADLINE_S):
            await test
