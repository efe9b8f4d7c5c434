"""An import inside a function has a reason, and the reasons are listed here.

import-linter counts such imports like any other, so none hides a circle or an arrow upwards. What
is left to say is why the import waits: mostly for what a command or a server starts without.
"""

import ast
import functools
import re
from fnmatch import fnmatch
from pathlib import Path

import penstock

ROOT = Path(penstock.__file__).parent

REASONS = (
    (
        "cli/*.py",
        "penstock.*",
        "a command loads what it runs, so that --help and others start soon",
    ),
    ("spark.py", "penstock.pipeline.*", "importing it tells a missing extra by the call"),
    ("tables.py", "penstock.pipeline.*", "importing it tells a missing extra by the call"),
    ("app/server.py", "penstock.app.*", "a shape of a server loads what it is made of alone"),
    ("app/server.py", "penstock.kafka.wire.*", "kio's messages load while the server opens"),
    ("app/server.py", "penstock.peers.*", "the HTTP port comes after Kafka clients are served"),
    ("app/*.py", "penstock.app.http.*", "the HTTP port comes after Kafka clients are served"),
    ("app/*.py", "penstock.app.api.*", "the HTTP port comes after Kafka clients are served"),
    ("app/listening.py", "penstock.security.*", "most servers have neither TLS nor SASL"),
    ("objects/opening.py", "penstock.objects.bucket", "obstore is for buckets alone"),
    ("replica/*.py", "penstock.replica.postgres*", "psycopg is for journals in PostgreSQL alone"),
    ("recovery/*.py", "penstock.replica.postgres*", "psycopg is for journals in PostgreSQL alone"),
    ("pipeline/*.py", "penstock.*", "numba, pyspark and pyiceberg load where they are used alone"),
)
"""Importing file, imported module, why the import waits."""

INDENTED = re.compile(r"(^[ \t]+|[:;][ \t]*)(from|import)\s+penstock", re.MULTILINE)
"""What a module has that imports one of ours inside a function."""


@functools.cache
def imports() -> list[tuple[str, int, str]]:
    """File, line and module of each import of ours inside a function."""
    found: set[tuple[str, int, str]] = set()
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        source = path.read_text("utf-8")
        if not INDENTED.search(source):  # parsing all of the source takes seconds
            continue
        for function in ast.walk(ast.parse(source)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom):
                    modules = [f"{node.module}.{alias.name}" for alias in node.names]
                elif isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                else:
                    continue
                found |= {(name, node.lineno, one) for one in modules if one.startswith("penstock")}
    return sorted(found)


def row_of(file: str, module: str) -> int | None:
    parent = module.rpartition(".")[0]
    for number, (files, modules, _) in enumerate(REASONS):
        if fnmatch(file, files) and (fnmatch(module, modules) or fnmatch(parent, modules)):
            return number
    return None


def test_an_import_inside_a_function_has_a_reason() -> None:
    without = [f"{f}:{line}: {m}" for f, line, m in imports() if row_of(f, m) is None]
    assert not without, "import at the top of the module, or add a reason to REASONS"


def test_each_reason_is_of_an_import() -> None:
    used = {row_of(file, module) for file, _, module in imports()}
    assert not [row for number, row in enumerate(REASONS) if number not in used]
