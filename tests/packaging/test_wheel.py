"""The wheel that `pip install .` makes. Skipped where the locked build tools are not installed."""

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock
from penstock.version import VERSION

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed here")
def test_a_wheel_has_the_package_its_types_and_the_console_script(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=REPOSITORY,
        env=environment,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"penstock-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "penstock = penstock.cli:main" in archive.read(entry_points).decode()
    assert "penstock/py.typed" in names
    assert "penstock/cli/commands/serve.py" in names
    assert not [name for name in names if name.startswith(("tests", "bench", "demo"))]
    assert not [name for name in names if name.endswith(("/docs.py", "/pages.py"))]
    assert {name for name in names if name.startswith("penstock/testing/")} == {
        f"penstock/testing/{module}.py"
        for module in ("__init__", "conformance", "journal_conformance")
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_package_names_its_version() -> None:
    assert penstock.__version__ == VERSION
