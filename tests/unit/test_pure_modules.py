"""A module whose docstring says "Pure" imports neither time, chance, tasks nor the machine.

A package whose docstring says so holds all its modules to it. What is imported for type checkers
alone doesn't count.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
IMPURE = {"asyncio", "os", "random", "secrets", "socket", "sqlite3", "threading", "time"}
EXCUSED = {
    "penstock/state/leader_epochs.py": {"sqlite3"},  # `begin_leader_epoch`, which a restore calls
}


@functools.cache
def _says_pure(path: Path) -> bool:
    source = path.read_text("utf-8")
    if re.search(r"\bPure\b", source) is None:  # parsing all of the source takes seconds
        return False
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return re.search(r"\bPure\b", docstring) is not None


def _pure_modules() -> Iterator[Path]:
    for path in sorted(SOURCE.rglob("*.py")):
        packages = (folder / "__init__.py" for folder in path.parents if folder != SOURCE)
        around = [package for package in packages if package.exists()]
        if any(_says_pure(named) for named in (path, *around)):
            yield path


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the top names of the modules that a tree imports when it runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        else:
            yield from imported(node)


PURE = list(_pure_modules())


def test_there_are_pure_modules() -> None:
    assert len(PURE) > 100


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_it_imports_nothing_impure(path: Path) -> None:
    name = str(path.relative_to(SOURCE))
    impure = set(imported(ast.parse(path.read_text("utf-8")))) & IMPURE
    assert impure - EXCUSED.get(name, set()) == set()


def test_an_import_inside_a_function_counts() -> None:
    tree = ast.parse("def f():\n    if True:\n        from time import sleep\n")
    assert list(imported(tree)) == ["time"]
