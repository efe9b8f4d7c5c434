"""Checks of passwords: in a thread, bounded per address and in all."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from penstock.model.errors import OverloadedError
from penstock.security import passwords
from penstock.security.passwords import CHECKS_MAX, CHECKS_PER_ADDRESS_MAX, PasswordChecks
from penstock.security.scram import credential as credentials
from penstock.security.scram.credential import (
    ScramCredential,
    ScramMechanism,
    derive,
    salt_password,
)

SALT = b"salt"


def credential(mechanism: ScramMechanism) -> ScramCredential:
    salted = salt_password(mechanism, b"secret", salt=SALT, iterations=4096)
    return derive(mechanism, salted, salt=SALT, iterations=4096)


@pytest.fixture
async def checks() -> AsyncIterator[PasswordChecks]:
    made = PasswordChecks()
    yield made
    made.close()


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_the_password_alone_is_right(
    checks: PasswordChecks, mechanism: ScramMechanism
) -> None:
    known = credential(mechanism)
    assert await checks.check(known, b"secret", "a")
    for wrong in (b"secre", b"secret ", b"Secret", b"", known.stored_key, known.server_key):
        assert not await checks.check(known, wrong, "a")
    assert not await checks.check(None, b"secret", "a")


async def test_keys_are_compared_in_constant_time(
    checks: PasswordChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[object, object]] = []
    monkeypatch.setattr(
        credentials.hmac, "compare_digest", lambda *both: compared.append(both) or False
    )
    known = credential(ScramMechanism.SHA_256)
    assert not await checks.check(known, b"secret", "a")
    assert compared == [(known.stored_key, known.stored_key)]


async def test_the_loop_turns_while_a_password_is_checked(
    checks: PasswordChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(
        passwords, "has_password", lambda *_: threads.append(threading.get_ident()) or True
    )
    assert await checks.check(credential(ScramMechanism.SHA_256), b"x", "a")
    assert threads != [threading.get_ident()]


async def test_so_many_wait_and_no_more(
    checks: PasswordChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(passwords, "has_password", lambda *_: go_on.wait(60))
    known = credential(ScramMechanism.SHA_256)
    waiting = [
        asyncio.ensure_future(checks.check(known, b"x", f"a{number // CHECKS_PER_ADDRESS_MAX}"))
        for number in range(CHECKS_MAX - 1)
    ]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="16 of this address wait"):
        await checks.check(known, b"x", "a0")
    waiting.append(asyncio.ensure_future(checks.check(known, b"x", "other")))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="256 in all"):
        await checks.check(known, b"x", "another")
    go_on.set()
    assert all(await asyncio.gather(*waiting))
    assert await checks.check(known, b"x", "a0")
