"""An asyncio event loop without a selector, threads or real time: what happens next is the seed's.

Time stands still while callbacks run and jumps to the next timer when there are none. Callbacks
belong to nodes (a process of the simulated cluster, say): a node runs its own in the order in
which they were scheduled, as one process does, but which node goes next is drawn. A node can be
paused, as by SIGSTOP or a long collection of garbage: its callbacks and timers wait until it is
resumed. It can be killed: they are dropped, and nothing of it ever runs again, no `finally` either.

To which node a callback belongs is a context variable, so that whatever a node's code schedules,
tasks and timers included, is that node's. Uses internals of asyncio (`Handle._run`, `_context`,
`BaseEventLoop._run_once`), which are the same in the releases of Python that Penstock supports.
"""

import asyncio
import heapq
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, Self, TypeVar

from penstock.ports.random import Random
from support.simulated.inline_executor import InlineExecutor

T = TypeVar("T")

STEPS_MAX: Final = 3_000_000
"""Callbacks of one run: more mean that something turns in circles."""
STEP_S: Final = 1e-6
"""Time that one callback takes, so that turning in circles makes time pass as well."""
CLOSED_TIMES_MAX: Final = 10
"""How often a coroutine left waiting is closed: each `finally` that waits takes one more."""
START_MS: Final = 1_700_000_000_000
"""The wall clock at time 0: some day of 2023."""


class StuckError(Exception):
    """Nothing will ever happen any more, or too much has, and the main task isn't done."""


class Node:
    """A process of the simulation. Made by `VirtualLoop.node`."""

    __slots__ = ("dead", "index", "name", "paused", "ready")

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name = name
        self.paused = False
        self.dead = False
        self.ready: deque[asyncio.Handle] = deque()

    def __repr__(self) -> str:
        return f"<{self.name}>"


_NODE: ContextVar[Node | None] = ContextVar("penstock_simulated_node", default=None)


class _Future(asyncio.Future[Any]):
    """Hashes by number: in a set, addresses would decide the order, and no seed gives those."""

    def __init__(self, *, loop: "VirtualLoop") -> None:
        super().__init__(loop=loop)
        self.number = loop.next_number()

    def __hash__(self) -> int:
        return self.number

    __eq__ = object.__eq__


class _Task(asyncio.Task[Any]):
    """A task that hashes as `_Future` does. Knows its node, for dumps."""

    def __init__(self, coro: Any, *, loop: "VirtualLoop", **options: Any) -> None:
        self.number = loop.next_number()
        context: Context | None = options.get("context")
        self.node = _NODE.get() if context is None else context.get(_NODE)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number

    __eq__ = object.__eq__


def _fill(
    handle: Any,
    callback: Callable[..., object],
    args: tuple[Any, ...],
    loop: asyncio.AbstractEventLoop,
    context: Context | None,
) -> None:
    handle._context = copy_context() if context is None else context
    handle._loop = loop
    handle._callback = callback
    handle._args = args
    handle._cancelled = False
    handle._repr = handle._source_traceback = None


class _Handle(asyncio.Handle):
    """Doesn't ask whether the loop is being debugged: a run makes handles by the ten thousand."""

    __slots__ = ()
    __init__ = _fill


class _TimerHandle(asyncio.TimerHandle):
    """A handle of a timer, made as `_Handle` is."""

    __slots__ = ()

    def __init__(self, when: float, *what: Any) -> None:
        _fill(self, *what)
        self._when = when
        self._scheduled = False


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. Use `run`.

    Args:
        random: decides which node goes next.
        steps_max: callbacks until the run counts as stuck.
    """

    def __init__(self, random: Random, *, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self._random = random
        self._now_s = 0.0
        self._numbers = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._active: list[Node] = []
        """Nodes that have something to run and aren't paused."""
        self._nodes: list[Node] = []
        self._steps_max = steps_max
        self._discarding = False
        self.world = self.node("world")
        self.running: Node = self.world
        """The node whose callback runs now."""
        self.steps = 0
        self.trace = 0
        """Depends on every callback so far, by its node and time: equal runs have equal traces."""
        self.faults: list[str] = []
        """Unhandled errors: exceptions of callbacks and of forgotten tasks."""
        self._kept: list[object] = []
        self._watched: list[_Task] = []
        """Tasks of nodes that may fail yet, or have failed and nothing has taken their error."""
        self._doubtful: set[_Task] = set()
        """Tasks of `_watched` that had failed at the last `note_forgotten`."""
        self._executor = InlineExecutor(random)
        self.set_exception_handler(_note_fault)
        # A task of a dead node is kept, lest its coroutine be closed and run `finally` clauses.
        self.set_task_factory(_make_task)

    # -- nodes ---------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """A new node."""
        node = Node(len(self._nodes), name)
        self._nodes.append(node)
        return node

    def context_of(self, node: Node) -> Context:
        """A context in which everything belongs to `node`."""
        context = copy_context()
        context.run(_NODE.set, node)
        return context

    @contextmanager
    def on(self, node: Node) -> Iterator[None]:
        """Let what is scheduled inside belong to `node`."""
        token = _NODE.set(node)
        try:
            yield
        finally:
            _NODE.reset(token)

    def spawn(
        self, node: Node, coroutine: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> "asyncio.Task[T]":
        """Start a task on a node."""
        return self.create_task(coroutine, name=name, context=self.context_of(node))

    def pause(self, node: Node) -> None:
        """Let nothing of a node run until `resume`."""
        node.paused = True
        if node in self._active:
            self._active.remove(node)

    def resume(self, node: Node) -> None:
        """Let a paused node go on, with all that came due meanwhile."""
        if node.paused:
            node.paused = False
            if node.ready and not node.dead:
                self._active.append(node)

    def kill(self, node: Node) -> None:
        """End a node at once: nothing of it ever runs again."""
        node.dead = True
        self._kept.extend(node.ready)
        node.ready.clear()
        if node in self._active:
            self._active.remove(node)

    # -- asyncio's side ------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the run began."""
        return self._now_s

    def next_number(self) -> int:
        """A number for a task or future."""
        self._numbers += 1
        return self._numbers

    def create_future(self) -> "asyncio.Future[Any]":
        """See asyncio."""
        return _Future(loop=self)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See asyncio."""
        handle: asyncio.Handle = _Handle(callback, args, self, context)
        self._make_ready(handle)
        return handle

    # There are no threads.
    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self.next_number(), timer))
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """See asyncio: on an `InlineExecutor`, whatever was asked for."""
        chosen = executor if isinstance(executor, InlineExecutor) else self._executor
        return asyncio.wrap_future(chosen.submit(func, *args), loop=self)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when they come due."""

    def _write_to_self(self) -> None:
        """There is no selector to wake."""

    def _make_ready(self, handle: asyncio.Handle) -> None:
        node = handle._context.get(_NODE) or self.world  # type: ignore[attr-defined]
        if node.dead or self._discarding:
            self._kept.append(handle)
            return
        if not node.ready and not node.paused:
            self._active.append(node)
        node.ready.append(handle)

    def _run_once(self) -> None:
        """Run all there is until `stop` is called: one callback at a time, whose node is drawn."""
        timers, active, below = self._timers, self._active, self._random.below
        while not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not active:
                if not timers:
                    raise StuckError(
                        f"nothing is left to run at {self._now_s:.3f} s\n{self.dump()}"
                    )
                self._now_s = max(self._now_s, timers[0][0])
            while timers and timers[0][0] <= self._now_s:
                timer = heapq.heappop(timers)[2]
                if not timer._cancelled:
                    self._make_ready(timer)
            if not active:
                continue
            index = below(len(active)) if len(active) > 1 else 0
            node = active[index]
            handle = node.ready.popleft()
            if not node.ready:
                active.pop(index)
            self.steps += 1
            if self.steps > self._steps_max:
                raise StuckError(f"{self.steps} callbacks at {self._now_s:.3f} s\n{self.dump()}")
            self._now_s += STEP_S
            self.trace = hash((self.trace, node.index, self._now_s))
            if not handle._cancelled:
                self.running = node
                handle._run()
                self.running = self.world

    def note_forgotten(self) -> None:
        """Add to `faults` the errors of tasks that nothing has taken since the last call.

        asyncio reports a forgotten task when it is collected, and tasks of nodes are kept. What a
        node still held when it was killed is not its fault, and a paused node can take nothing.
        """
        doubtful: set[_Task] = set()
        watched = []
        for task in self._watched:
            if not task.done() or (task.node and task.node.paused):
                watched.append(task)
            elif task._log_traceback and not (task.node and task.node.dead):
                if task not in self._doubtful:
                    doubtful.add(task)
                    watched.append(task)
                    continue
                error = task.exception()
                text = "".join(traceback.format_exception(error))
                self.faults.append(f"{task.node} {task.get_name()}: nothing took its error\n{text}")
        self._watched, self._doubtful = watched, doubtful

    def dump(self) -> str:
        """List which task waits for what."""
        lines = []
        for task in sorted(
            (task for task in asyncio.all_tasks(self) if isinstance(task, _Task)),
            key=lambda task: task.number,
        ):
            if task.node is not None and task.node.dead:
                continue
            frames = task.get_stack(limit=1)
            where = f"{frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}" if frames else "?"
            waits = _innermost(task.get_coro())
            lines.append(f"  {task.node or self.world} {task.get_name()} {where} -> {waits}")
        return "\n".join(lines)

    def discard(self) -> None:
        """Run nothing more; what is scheduled from here on is dropped. For the end of a run."""
        self._discarding = True
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for node in self._nodes:
            node.ready.clear()
        self._active.clear()
        self._timers.clear()


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> "asyncio.Task[Any]":
    assert isinstance(loop, VirtualLoop)
    task = _Task(coro, loop=loop, **options)
    if task.node is not None and task.node is not loop.world:
        loop._kept.append(task)
        loop._watched.append(task)
    return task


def _note_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualLoop)
    if loop._discarding:
        return
    error = context.get("exception")
    loop.faults.append(f"{loop.running.name}: {context.get('message')}: {error!r}")
    if error is not None:
        loop.faults.append("".join(traceback.format_exception(error)))


def _innermost(coroutine: Any) -> str:
    """The names of the coroutines that a task waits in, outermost first."""
    names = []
    while coroutine is not None and hasattr(coroutine, "cr_frame"):
        frame = coroutine.cr_frame
        names.append(f"{coroutine.__qualname__}:{frame.f_lineno if frame else '-'}")
        coroutine = coroutine.cr_await
    return " > ".join(names)


class VirtualClock:
    """Implements `penstock.ports.clock.Clock` on a loop's time. `skew_ms` moves the wall clock."""

    def __init__(self, loop: VirtualLoop, *, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """Wall-clock time, ms since the epoch."""
        return START_MS + int(self._loop.time() * 1000) + self.skew_ms

    def monotonic_s(self) -> float:
        """Seconds since the run began."""
        return self._loop.time()


class VirtualRunner:
    """Owns a virtual loop as `asyncio.Runner` owns a real one: `run` as often as wanted, inside of
    `with`.

    Args:
        closes_coroutines: what is left waiting at the end is closed, which runs its `finally`
            clauses; else the collector does that some time.
    """

    def __init__(
        self, random: Random, *, steps_max: int = STEPS_MAX, closes_coroutines: bool = True
    ) -> None:
        self.loop = VirtualLoop(random, steps_max=steps_max)
        self._closes_coroutines = closes_coroutines

    def __enter__(self) -> Self:
        asyncio.set_event_loop(self.loop)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.discard()
        if self._closes_coroutines:
            _close_coroutines(asyncio.all_tasks(self.loop))
        asyncio.set_event_loop(None)
        self.loop.close()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end.

        Raises:
            StuckError: it can't end any more.
        """
        return self.loop.run_until_complete(main)


def run(
    main: Callable[[VirtualLoop], Coroutine[Any, Any, T]],
    random: Random,
    *,
    steps_max: int = STEPS_MAX,
    closes_coroutines: bool = True,
) -> T:
    """Run a coroutine to its end on a loop of its own, as `VirtualRunner` does."""
    with VirtualRunner(random, steps_max=steps_max, closes_coroutines=closes_coroutines) as runner:
        return runner.run(main(runner.loop))


def _close_coroutines(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Close them here and not when the collector comes by: one that waits for something in a
    `finally` clause would be reported then, in the middle of another test."""
    for task in tasks:
        coroutine: Any = task.get_coro()
        for _ in range(CLOSED_TIMES_MAX):
            with suppress(Exception):
                coroutine.close()
                break
