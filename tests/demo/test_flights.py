"""The demo runs whole, and its check is not blind."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "demo" / "flights.py"


@pytest.fixture(scope="module")
def flights_demo() -> ModuleType:
    """demo/flights.py as a module."""
    spec = importlib.util.spec_from_file_location("flights_demo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flights_demo"] = module
    spec.loader.exec_module(module)
    return module


def test_the_demo_passes_and_stays_quiet_in_a_pipe() -> None:
    """All 336,776 flights go through the broker and back, and the two tables are the same."""
    command = [sys.executable, str(SCRIPT)]
    elsewhere = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if elsewhere:
        command += ["--bootstrap", elsewhere]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "336,776 flights" in done.stdout
    assert "both tables are the same" in done.stdout
    assert "DIFFERENT" not in done.stdout
    if not elsewhere:
        assert "336,776 rows" in done.stdout
        assert "Spark SQL's delays per carrier from the table are those of the data" in done.stdout
        assert "336,760 flights were left out, 16 are read again, the last of" in done.stdout
    # A progress bar is for a terminal.
    assert "\r" not in done.stderr
    assert "\r" not in done.stdout


def test_the_data_are_the_known_ones(flights_demo: ModuleType) -> None:
    """Row count and sums as published with the data, so that "straight from the data" is true."""
    flights = flights_demo.read_flights()
    table = flights_demo.tally(flights)
    assert len(flights) == 336_776
    assert len(table) == 16
    assert table["UA"].flights == 58_665
    assert sum(delays.departures for delays in table.values()) == 336_776 - 8_255
    assert sum(delays.arrivals for delays in table.values()) == 336_776 - 9_430


@pytest.mark.parametrize("fault", ["none", "lost", "twice", "swapped", "changed", "moved"])
def test_the_check_sees_each_fault(flights_demo: ModuleType, fault: str) -> None:
    """A record lost, doubled, out of order, changed or at another offset is a difference."""
    flights = flights_demo.read_flights(limit=40)
    sent = flights_demo.Sent()
    got = []
    for index, flight in enumerate(flights):
        partition = sum(map(ord, flight["carrier"])) % flights_demo.PARTITIONS
        offset = len(sent.partitions[partition])
        sent.partitions[partition][offset] = index
        got.append(
            flights_demo.Got(
                index % 2, partition, offset, flight["carrier"], index, copy.deepcopy(flight)
            )
        )
    same_partition = [i for i, g in enumerate(got) if g.partition == got[0].partition][:2]
    first, second = same_partition
    if fault == "lost":
        del got[second]
    elif fault == "twice":
        got.append(got[first])
    elif fault == "swapped":
        got[first], got[second] = got[second], got[first]
    elif fault == "changed":
        got[first].flight["dep_delay"] = 9999
    elif fault == "moved":
        sent.partitions[got[0].partition][got[0].offset] = 39
    assert bool(flights_demo.differences(flights, sent, got)) == (fault != "none")
