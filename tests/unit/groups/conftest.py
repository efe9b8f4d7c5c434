"""Makes the folder's own helpers importable; tests have no packages."""

import importlib.util
import sys
from pathlib import Path

import pytest


def _load(name: str, file: str) -> None:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


_load("groups_fakes", "fakes.py")
_load("groups_dialogue", "dialogue.py")
_load("groups_calls", "calls.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write golden dialogues anew")
