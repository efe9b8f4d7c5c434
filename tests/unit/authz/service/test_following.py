"""Instances on one journal: every interleaving gives the same databases, and true answers."""

import asyncio
import contextlib
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.authz.service.following import INLINE_BYTES_MAX
from penstock.authz.state.entries import Done
from penstock.model.errors import FencedError, InDoubtError, JournalOlderError, RetryableError
from penstock.replica import tokens
from support.authz import write
from support.authz_world import (
    contents,
    opened_authz,
    path_of,
    role,
    roles_of,
    set_roles_policy,
    written,
    written_for_sure,
)
from support.examples import examples
from support.simulated.inline_executor import InlineExecutor
from support.simulated.journal import JournalFaults
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import run

NASTY = JournalFaults(
    delay_ms=(0, 8),
    commit_ms=(0, 12),
    slow_permille=15,
    lost_request_permille=30,
    lost_reply_permille=30,
    gap_permille=30,
    doubled_permille=30,
    lost_read_permille=10,
    lost_hint_permille=300,
)
MANY = INLINE_BYTES_MAX // 20
"""Roles of one write that isn't applied on the event loop."""
LONG_S = 60.0


@pytest.fixture
async def world(virtual_loop, tmp_path):
    async with opened_authz(virtual_loop, tmp_path) as made:
        yield made
    assert not virtual_loop.faults, virtual_loop.faults


@pytest.mark.slow
@settings(max_examples=examples(0.2))
@given(seed=st.integers(0, 1 << 32))
def test_any_interleaving_gives_equal_databases_and_true_answers(seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    names = ["default", "other"]
    acknowledged = {name: set() for name in names}
    unsure = {name: set() for name in names}

    async def write_and_read(world, services, writer):
        """What was acknowledged at one instance is seen at another, with its token."""
        random = world.random
        for number in range(8):
            name = names[random.below(2)]
            here, there = (services[random.below(len(services))] for _ in range(2))
            users = [f"{writer}-{number}"]
            if not random.below(3):
                users += [f"{users[0]}-{each}" for each in range(MANY)]
            try:
                environment = here.environment(name)
                outcome = await written(environment, *users)
            except RetryableError:
                continue  # it isn't open here, since the journal is away
            if outcome is None:
                unsure[name].update(users)
                continue
            assert isinstance(outcome, Done)
            assert outcome.changed == len(users)
            acknowledged[name].update(users)
            token = environment.token(outcome.position)
            with contextlib.suppress(RetryableError):
                read = there.environment(name)
                await read.reach(token)
                assert users[0] in roles_of(read.path)

    async def disturb(world):
        for _ in range(3):
            await asyncio.sleep(world.random.below(300) / 1000)
            match world.random.below(3):
                case 0:
                    world.journal.crash()
                case 1:
                    world.journal.go_away()
                    await asyncio.sleep(world.random.below(6_000) / 1000)
                    world.journal.come_back()
                case _:
                    pass

    async def main(loop):
        async with opened_authz(loop, folder, faults=NASTY, seed=seed) as world:
            # One that has room for one environment closes and opens them all the time.
            services = [
                await world.started("one", open_max=1),
                await world.started("two", open_max=1 + seed % 3),
                await world.started("three"),
            ]
            while "other" not in services[2].directory.environments:
                with contextlib.suppress(RetryableError):
                    await services[0].directory.create_environment("other")
            for name in names:
                await set_roles_policy(services[2].environment(name))
            for service in services:
                while "other" not in service.directory.environments:
                    await asyncio.sleep(0.1)
            writers = (write_and_read(world, services, str(each)) for each in range(5))
            await asyncio.gather(disturb(world), *writers)
            world.journal.faults = JournalFaults()
            await asyncio.sleep(LONG_S)
            for name in names:
                token = await written_for_sure(services[0].environment(name), "last")
                for service in services:
                    await service.environment(name).reach(token)
            for service in services:
                assert not service.failed.done()
                await world.close(service)
            for name in names:
                found = [contents(path_of(service, name)) for service in services]
                assert found[0] == found[1] == found[2]
                roles = roles_of(path_of(services[0], name))
                assert acknowledged[name] <= roles
                assert roles <= acknowledged[name] | unsure[name] | {"last"}
        assert not loop.faults, loop.faults

    run(main, SeededRandom(seed))


@pytest.mark.slow
@settings(max_examples=examples(0.2))
@given(seed=st.integers(0, 1 << 32))
def test_a_killed_instance_goes_on_from_what_it_left(seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    acknowledged: set[str] = set()

    async def load(world, service, writer):
        for number in range(30):
            users = [f"{writer}-{number}"]
            if not world.random.below(4):
                users += [f"{users[0]}-{each}" for each in range(MANY)]
            outcome = None
            with contextlib.suppress(FencedError):
                outcome = await written(service.environment("default"), *users)
            if outcome is not None:
                acknowledged.update(users)

    async def main(loop):
        async with opened_authz(loop, folder, faults=NASTY, seed=seed) as world:
            one, two = await world.started("one"), await world.started("two")
            await set_roles_policy(one.environment("default"))
            loads = [
                asyncio.ensure_future(load(world, service, name))
                for name, service in (("one", one), ("two", two))
            ]
            await asyncio.sleep(world.random.below(500) / 1000)
            # The older process hasn't ended, though all think so: it may write no more.
            world.copied(one, "again")
            again = await world.started("again")
            loads.append(asyncio.ensure_future(load(world, again, "again")))
            await asyncio.gather(*loads)
            world.journal.faults = JournalFaults()
            token = await written_for_sure(again.environment("default"), "last")
            for service in (two, again):
                await service.environment("default").reach(token)
                assert not service.failed.done()
            with pytest.raises((FencedError, InDoubtError)):
                await one.environment("default").write(write(role("zombie")))
            assert isinstance(one.failed.exception(), FencedError)
            for service in (two, again):
                await world.close(service)
            assert contents(path_of(two)) == contents(path_of(again))
            assert acknowledged <= roles_of(path_of(two))
        assert not loop.faults, loop.faults

    run(main, SeededRandom(seed))


async def test_an_environment_may_have_any_name(world):
    """Names are those of environments alone: none means something else in an entry."""
    service = await world.started("one")
    for name in ("open", "0", "a" * 63):
        await service.directory.create_environment(name)
        environment = service.environment(name)
        await set_roles_policy(environment)
        await written_for_sure(environment, "alice")
        assert roles_of(environment.path) == {"alice"}
    assert not service.failed.done()


class AtOnce(InlineExecutor):
    """A thread that is faster than the event loop: what it does takes effect at once."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        result = fn(*args, **kwargs)
        asyncio.get_running_loop().call_later(0.01, future.set_result, result)
        return future


async def test_writes_that_a_thread_applies_have_their_answers(world, monkeypatch):
    service = await world.started("one")
    await service.directory.create_environment("other")
    monkeypatch.setattr(service, "_writing", AtOnce(world.random))
    environment = service.environment("other")
    await set_roles_policy(environment)
    for turn in range(20):
        users = [f"{turn}-{each}" for each in range(MANY)]
        outcome = await written(environment, *users)
        assert isinstance(outcome, Done)
        assert outcome.changed == len(users)


async def test_closing_ends_what_a_thread_applies(world):
    service = await world.started("one")
    environment = service.environment("default")
    await set_roles_policy(environment)
    writes = [
        asyncio.ensure_future(written(environment, *(f"{turn}-{each}" for each in range(MANY))))
        for turn in range(20)
    ]
    await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
    began_s = world.clock.monotonic_s()
    await world.close(service)
    assert None in await asyncio.gather(*writes)
    # Writers are answered at once: none waits for its time to be over.
    assert world.clock.monotonic_s() - began_s < 1


async def test_a_start_is_tried_again(world):
    one = await world.started("one")
    await set_roles_policy(one.environment("default"))
    world.journal.go_away()
    starting = asyncio.ensure_future(world.started("two"))
    await asyncio.sleep(5)
    assert not starting.done()
    world.journal.come_back()
    two = await starting
    token = await written_for_sure(one.environment("default"), "alice")
    await two.environment("default").reach(token)
    assert roles_of(path_of(two)) == {"alice"}


async def came_back_older(world):
    """Two instances that had applied what is lost, stopped, and a third that began after it; the
    token of what is lost."""
    one, two = await world.started("one"), await world.started("two")
    await set_roles_policy(one.environment("default"))
    kept = await written_for_sure(one.environment("default"), "kept")
    before = world.journal.head
    await two.environment("default").reach(kept)
    lost = await written_for_sure(one.environment("default"), "lost")
    await two.environment("default").reach(lost)
    world.journal.come_back_older(before)
    await asyncio.sleep(10)
    for service in (one, two):
        assert isinstance(service.failed.exception(), JournalOlderError)
        await world.close(service)
    return lost, await world.started("three")


async def test_a_token_of_what_is_lost_asks_for_nothing(world):
    lost, three = await came_back_older(world)
    # Before any instance has said so, the token may still be one of what is to come.
    with pytest.raises(RetryableError, match="isn't here yet"):
        await three.environment("default").reach(lost)
    one, two = await world.started("one"), await world.started("two")
    assert one.shard.history == two.shard.history != b""
    for service in (one, two, three):
        await service.environment("default").reach(lost)
        assert service.environment("default").is_reached(lost)
        assert roles_of(path_of(service)) == {"kept"}
    new = await written_for_sure(one.environment("default"), "new")
    await two.environment("default").reach(new)
    assert roles_of(path_of(two)) == {"kept", "new"}
    # Both had applied the loss, and the later one's history would void what was given since.
    assert not any((service.data / "lost").exists() for service in (one, two))


async def test_a_token_of_a_new_history_waits_where_that_is_not_known(world):
    _, three = await came_back_older(world)
    world.journal.faults = JournalFaults(lost_hint_permille=1000)
    one = await world.started("one")
    new = await written_for_sure(one.environment("default"), "new")
    # It reads the journal now and then, and hasn't heard of the history.
    assert three.shard.history == b""
    environment = three.environment("default")
    assert not environment.is_reached(new)
    await environment.reach(new)
    assert roles_of(environment.path) == {"kept", "new"}
    assert three.shard.history == one.shard.history


async def test_a_stranger_s_token_costs_one_look(world):
    service = await world.started("one")
    await service.directory.create_environment("other")
    other, environment = service.environment("other"), service.environment("default")
    await set_roles_policy(other)
    token = await written_for_sure(other, "alice")
    assert not environment.is_reached(token)
    await environment.reach(token)
    assert environment.is_reached(token)
    assert environment.is_reached("nonsense")
    world.journal.go_away()
    await asyncio.sleep(10)
    assert environment.is_reached(tokens.encode(b"stranger", 5))


@pytest.mark.parametrize("grows", [False, True])
async def test_a_database_that_holds_what_the_journal_has_not_is_noticed(world, grows):
    """Also where the shard's own database is gone, which would show that the journal is older."""
    one, two = await world.started("one"), await world.started("two")
    await set_roles_policy(one.environment("default"))
    await two.environment("default").reach(await written_for_sure(one.environment("default"), "a"))
    before = world.journal.head
    await world.close(two)
    lost = await written_for_sure(one.environment("default"), "lost")
    await world.close(one)
    for path in one.data.glob("shard.sqlite*"):
        path.unlink()
    world.journal.come_back_older(before)
    if grows:
        # The lost entry's position is another's.
        two = await world.started("two")
        await written_for_sure(two.environment("default"), "instead")
        await written_for_sure(two.environment("default"), "more")
    with pytest.raises(JournalOlderError, match="its database is at position"):
        await world.started("one")
    ended = world.services[-1]
    assert isinstance(ended.failed.exception(), JournalOlderError)
    await world.close(ended)
    again = await world.started("one")
    assert roles_of(path_of(again)) == ({"a", "instead", "more"} if grows else {"a"})
    # Tokens of the lost entry ask for nothing.
    assert again.shard.history != b""
    await again.environment("default").reach(lost)
