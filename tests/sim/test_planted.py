"""The bugs that are planted fit the sources: whether they are found is `planted.py`'s to see."""

import re
from pathlib import Path

import pytest

from sim.planted import (
    HERE,
    CleanTree,
    changed_by,
    expected_kinds,
    header,
    look_for,
    plant,
    what_it_does,
)
from sim.profiles import (
    ALL_GROUPS,
    CONNECTIONS,
    DRILLS,
    LATER,
    NEAR_CLOCKS,
    PROFILES,
    REPLACED,
    RESTORED_IN_LIFE,
    TRANSACTIONS,
)

PATCHES = sorted((HERE / "planted").glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_fits_the_sources(patch: Path, tmp_path: Path) -> None:
    assert expected_kinds(patch)
    tree = plant(patch, tmp_path)
    changed = changed_by(patch)
    assert changed
    for name in changed:
        source = (tree / name).read_text()
        assert source != (HERE.parents[1] / name).read_text()
        compile(source, name, "exec")


def test_a_patch_is_never_taken_for_a_reversed_one(tmp_path: Path) -> None:
    """Where its own line is gone `patch` offers to undo the bug, at any line like it."""
    patch = tmp_path / "stale.patch"
    module = "src/penstock/state/ages.py"
    source = (HERE.parents[1] / module).read_text()
    (line,) = (line for line in source.splitlines() if line.startswith("class Ages"))
    patch.write_text(f"--- a/{module}\n+++ b/{module}\n@@ -8 +8 @@\n-class Gone:\n+{line}\n")
    with pytest.raises(ValueError, match="does not apply"):
        plant(patch, tmp_path)


def test_the_docs_list_what_is_planted() -> None:
    docs = (HERE.parents[1] / "docs" / "simulation.md").read_text()
    rows = [f"| `{patch.stem}` | {what_it_does(patch)} |" for patch in PATCHES]
    found = [line for line in docs.splitlines() if line.startswith("| `") and line.count("|") == 3]
    assert [row for row in found if row.split("`")[1] in {patch.stem for patch in PATCHES}] == rows


def test_the_docs_name_each_violation() -> None:
    docs = (HERE.parents[1] / "docs" / "simulation.md").read_text()
    named = re.compile(r'(?:violate|ViolationError)\(\s*"([a-z-]+)"')
    kinds = {
        kind
        for module in HERE.glob("*.py")
        if not module.name.startswith("test_")
        for kind in named.findall(module.read_text())
    }
    assert len(kinds) > 40
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in docs] == []


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_header_names_a_profile_that_there_is(patch: Path) -> None:
    assert header(patch, "profile") in {
        "",
        *(
            profile.name
            for profile in (
                *PROFILES,
                *LATER,
                RESTORED_IN_LIFE,
                NEAR_CLOCKS,
                REPLACED,
                CONNECTIONS,
                DRILLS,
                TRANSACTIONS,
                ALL_GROUPS,
            )
        ),
    }


class _Failing(CleanTree):
    """A tree in which each seed fails."""

    def failure(self, seed: int) -> str:
        return f"SEED {seed}: lost-write: as with the bug"


def test_a_seed_that_fails_without_the_bug_shows_no_bug(tmp_path: Path) -> None:
    (patch,) = (patch for patch in PATCHES if patch.stem == "apply_without_numbers")
    looked = look_for(patch, tmp_path, _Failing(), seeds_max=1)
    assert not looked.found
    assert "fails without the bug" in looked.detail
    assert look_for(patch, tmp_path, CleanTree(), seeds_max=1).found


def test_seeds_that_are_run_together_are_known_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "SEED 2: lost-write: it is gone\n  again: make sim SEED=2\n2 passed, 1 failed\n"
    monkeypatch.setattr("sim.planted.simulated", lambda *_, **__: said)
    clean = CleanTree()
    clean.learn([1, 2, 3], processes=2)
    assert [clean.failure(seed) for seed in (1, 2, 3)] == [
        "",
        "SEED 2: lost-write: it is gone",
        "",
    ]


def test_seeds_of_a_run_that_ended_early_are_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["1 passed, 0 failed", "1 passed, 0 failed\n"]
    monkeypatch.setattr("sim.planted.simulated", lambda *_, **__: said.pop())
    clean = CleanTree()
    clean.learn([1, 2], processes=2)
    assert clean.failure(2) == ""
    assert said == []
