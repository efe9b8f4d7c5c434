"""In a process of its own: what is set there stays there."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from penstock.system.memory import keep_freed_memory

def faults_of(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        bytes(8 << 20)
        bytearray(8 << 20)[::4096] = b"x" * 2048
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory(128 << 20)
faults_of(2)
print(faults_of(20))
"""


COLLECTION = """
import gc
from penstock.system.memory import keep_loaded_objects

import decimal, email.message, http.client, json

before = len(gc.get_objects())
keep_loaded_objects()
print(before, len(gc.get_objects()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_memory_that_was_freed_is_used_again():
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    # 20 rounds of 16 MiB are 80,000 pages where each is given back.
    assert int(answer.stdout) < 5_000


def test_the_garbage_collector_passes_over_what_is_loaded():
    answer = subprocess.run(
        [sys.executable, "-c", COLLECTION], capture_output=True, text=True, check=True
    )
    before, after = map(int, answer.stdout.split())
    assert before > 5_000
    assert after < 100
