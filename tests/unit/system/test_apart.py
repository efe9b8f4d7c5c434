"""Work in another process gives what it would give here: its result, or its error."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    NotFoundError,
    OverloadedError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.system.apart import run_apart

MODULE = """
import os, sys
from penstock.model.errors import *
from penstock.system.apart import answer_apart

class DamagedError(CorruptDataError):
    pass

def work():
    if sys.argv[1] == "ends":
        os._exit(9)
    if sys.argv[1] == "result":
        return {"niceness": bytes([os.nice(0)])}
    raise globals()[sys.argv[1]]("check", "it", "1 of 2", "again")

sys.exit(answer_apart(work))
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "works_apart.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(argument: str) -> dict[str, bytes]:
    return run_apart(
        "works_apart", [argument], dict[str, bytes], operation="do", subject="s", timeout_s=60
    )


@pytest.mark.slow
def test_its_result_comes_back_and_it_yields_to_others() -> None:
    (niceness,) = run("result")["niceness"]
    assert niceness >= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (CorruptDataError, CorruptDataError),
        ("DamagedError", CorruptDataError),
        (NotFoundError, NotFoundError),
        (StorageFullError, StorageFullError),
        (OverloadedError, RetryableError),
        (ConflictError, RetryableError),
    ],
)
def test_its_error_comes_back_with_its_words(
    raised: type[PenstockError] | str, kind: type[PenstockError]
) -> None:
    name = raised if isinstance(raised, str) else raised.__name__
    with pytest.raises(PenstockError, match=r"check it: 1 of 2 \(again\)") as caught:
        run(name)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("argument", "text"), [("ends", "do s: its process ended with 9"), ("none", "KeyError: 'none'")]
)
def test_one_that_ends_otherwise_may_be_tried_again(argument: str, text: str) -> None:
    with pytest.raises(RetryableError, match=text):
        run(argument)
