"""For tests that run the load inside pytest, whose filter makes errors of warnings."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator

import pytest

CLIENTS_WARN = pytest.mark.filterwarnings("default", "ignore::ResourceWarning")


@pytest.fixture
def tidied(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What client libraries left open is found here, where the test's filter still holds."""
    # In this thread: a filter holds for the whole process, and any thread may restore another.
    importlib.import_module("aiokafka")
    importlib.import_module("kafka")
    yield
    caplog.get_records("call").clear()  # what they logged keeps it
    gc.collect()
