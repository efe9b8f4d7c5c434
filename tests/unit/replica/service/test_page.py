"""The blocks of docs/replica.md run in their order, and print what they say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[4] / "docs" / "replica.md"


@pytest.mark.slow
def test_the_pages_blocks_run_and_print_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    source = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    wanted = re.findall(r"\bprint\(.*\) +# (.*)", source)
    assert len(wanted) >= 6
    printed = io.StringIO()
    names = {"__name__": "page"}
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, PAGE.name, "exec"), names)
    finally:
        for name in ("one", "two"):
            if name in names:
                names[name].close()
    assert printed.getvalue().splitlines() == wanted
