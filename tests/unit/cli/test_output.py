"""Tables are aligned, and progress is silent in a pipe."""

import pytest

from penstock.cli.progress import Progress
from penstock.cli.tables import print_table


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_stand_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("name", "count", "ok"), [("a", 5, True), ("longer", 12345, False)])
    assert capsys.readouterr().out == ("NAME    COUNT  OK\na           5  yes\nlonger  12345  no\n")


def test_an_empty_table_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "count"), [])
    assert capsys.readouterr().out == "NAME  COUNT\n"


def test_nothing_is_drawn_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("records", total=10) as progress:
        progress.update(10, 10)
    assert capsys.readouterr().err == ""


def test_a_line_tells_share_count_and_rate() -> None:
    progress = Progress("records", total=200, enabled=True)
    line = progress.line(50, 1000, elapsed_s=2.0)
    assert line == "[######..................]  25%  1,000 records  500/s"
    assert Progress("records", total=None).line(5, 5, 1.0) == "5 records  5/s"
