"""CHANGELOG.md has the form of Keep a Changelog: versions, each with kinds of changes."""

import re
from pathlib import Path

from penstock.version import VERSION

TEXT = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def sections() -> dict[str, str]:
    """What follows each heading of a version, by its text."""
    _, *parts = re.split(r"^## (.+)\n", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_versions_have_dates_and_the_newest_comes_first() -> None:
    first, *released = sections()
    assert first == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", one) for one in released]
    assert all(found), released
    order = [(tuple(map(int, one.groups()[:3])), one[4]) for one in found if one]
    assert order == sorted(order, reverse=True)
    if order:
        assert order[0][0] <= tuple(map(int, VERSION.split(".")))


def test_each_change_stands_under_its_kind_and_no_kind_is_empty() -> None:
    for version, text in sections().items():
        before, *parts = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)
        assert not re.search(r"^- ", before, re.MULTILINE), version
        kinds = parts[::2]
        assert kinds == [kind for kind in KINDS if kind in kinds], version
        for kind, changes in zip(kinds, parts[1::2], strict=True):
            assert changes.startswith("\n- "), (version, kind)
            for line in changes.strip().splitlines():
                assert line.startswith(("- ", "  ")), line
