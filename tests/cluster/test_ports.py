"""Ports that tests give to their servers are theirs alone."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from support.ports import PORTS_FROM, PORTS_TO, _Ports, adjacent_ports, free_port

TESTS = Path(__file__).resolve().parents[1]
MANY = 300
TAKES_MANY = f"""
from support.ports import PORTS_FROM, free_port
import support.ports
# All begin at one place.
support.ports._ports = support.ports._Ports()
support.ports._ports._next = PORTS_FROM
print(*(free_port() for _ in range({MANY})), flush=True)
input()
"""


def test_processes_that_ask_at_once_get_different_ports() -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", TAKES_MANY],
                    env={**os.environ, "PYTHONPATH": str(TESTS)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(3)
        ]
        found = []
        for process in processes:
            assert process.stdout is not None
            found += [int(word) for word in process.stdout.readline().split()]
        for process in processes:
            process.communicate("\n")
    assert len(found) == 3 * MANY == len(set(found))


def test_a_port_that_somebody_has_who_asked_nobody_is_passed_over() -> None:
    mine = free_port()
    assert PORTS_FROM <= mine < PORTS_TO
    anew = _Ports()
    anew._next = mine
    with socket.socket() as server:
        server.bind(("127.0.0.1", mine))
        server.listen()
        assert anew.take(1) != mine


def test_adjacent_ports_are_one_s_own() -> None:
    first, second = adjacent_ports(4), adjacent_ports(4)
    assert not set(range(first, first + 4)) & set(range(second, second + 4))
    assert max(first, second) + 4 <= PORTS_TO
