"""The bugs that are planted fit the sources: whether they are found is `planted.py`'s to see."""

from pathlib import Path

import pytest

from sim.planted import HERE, expected_kinds, plant

PATCHES = sorted((HERE / "planted").glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_fits_the_sources(patch: Path, tmp_path: Path) -> None:
    assert expected_kinds(patch)
    tree = plant(patch, tmp_path)
    changed = [
        line.removeprefix("+++ b/").split("\t")[0]
        for line in patch.read_text().splitlines()
        if line.startswith("+++ b/")
    ]
    assert changed
    for name in changed:
        source = (tree / name).read_text()
        assert source != (HERE.parents[1] / name).read_text()
        compile(source, name, "exec")
