"""How the console script's process ends."""

import io
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from penstock.cli.main import _run

SOURCES = Path(__file__).resolve().parents[3] / "src"

ENDS = """
import atexit, sys, threading
sys.path.insert(0, sys.argv[1])
from penstock.cli import main
held = threading.Lock()
held.acquire()
# An interpreter that ends in its own way waits for this for ever, as it would be met by those of
# libraries that can't be waited for.
threading.Thread(target=held.acquire).start()
atexit.register(lambda: print("what was registered is called", file=sys.stderr))
sys.argv = ["penstock", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize(
    ("arguments", "status", "told"), [(["--version"], 0, "penstock"), (["topic", "--no"], 2, "")]
)
def test_no_thread_outlives_the_command_and_what_it_printed_is_out(
    arguments: list[str], status: int, told: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(SOURCES), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith(told)
    assert done.stderr.endswith("what was registered is called\n")


def test_a_package_that_is_not_installed_is_named_in_one_line() -> None:
    hidden = "import sys; sys.modules['pyiceberg'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", hidden + ENDS, str(SOURCES), "pipeline", "table", "--topic", "a"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    (line, _) = done.stderr.splitlines()
    assert "the package pyiceberg" in line
    assert "pip install 'penstock[spark]'" in line


def test_output_that_nobody_takes_is_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", ENDS, str(SOURCES), "--version"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "what was registered is called\n")


class Terminal(io.StringIO):
    """Somebody may be asked."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "status"), [(None, 130), ("n", 1)], ids=["interrupted", "no"])
def test_a_question_that_is_interrupted_is_not_answered(
    answer: str | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(_prompt: str) -> str:
        if answer is None:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "argv", ["penstock", "topic", "delete", "some"])
    monkeypatch.setattr(click.termui, "visible_prompt_func", ask)
    assert _run() == status
