"""Pages that are made from code are what the code says now, and names in pages exist."""

import re
import runpy
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.config.fields import setting_fields
from penstock.kafka.net.movement import Ending
from penstock.observability.metrics import CATALOGUE

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = runpy.run_path(str(REPOSITORY / "tests" / "make_docs.py"))["PAGES"]
WRITTEN = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")],
    key=lambda page: page.relative_to(REPOSITORY).as_posix(),
)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_made_from_code_is_current(name: str) -> None:
    page = REPOSITORY / "docs" / name
    assert page.read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        url = urlsplit(target)
        if url.scheme or not url.path:
            continue
        assert (page.parent / url.path).exists(), f"{page.name} links to {target}"


def test_the_readmes_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z]+)", (REPOSITORY / "README.md").read_text()))
    assert named <= targets


def test_the_readme_names_the_clients_that_are_locked() -> None:
    locked = dict(
        re.findall(
            r"^([a-z0-9-]+)==([0-9.]+)",
            (REPOSITORY / "requirements" / "test.txt").read_text(),
            re.MULTILINE,
        )
    )
    rows = re.findall(
        r"^\| ([a-z-]+)(?: \([a-z]+\))? \| ([0-9.]+) \|$",
        (REPOSITORY / "README.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 3
    assert {name: locked[name] for name, _ in rows} == dict(rows)


def test_every_python_snippet_of_the_readme_is_python() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippets
    for snippet in snippets:
        compile(snippet, "README.md", "exec")


def test_the_limits_of_operations_have_their_defaults() -> None:
    text = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.split("\n## Limits\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_]+)` \| (?:`([^`]+)`|empty) \|", section, re.MULTILINE)
    fields = setting_fields()
    shown = {name: fields[name].show(fields[name].default) for name, _ in rows}
    assert dict(rows) == shown
    limits = {
        name
        for name, field in fields.items()
        if field.about.section == "Clients" and name != "drain_timeout_ms"
    }
    limits |= {
        "inflight_bytes_max",
        "group_inflight_bytes_max",
        "connection_inflight_bytes_max",
    }
    limits |= {"auto_create_topics_per_s"}
    limits |= {
        name
        for name, field in fields.items()
        if field.about.section in ("Topics", "Groups") and re.search("_max$|_max_size$", name)
    } - {"offset_metadata_length_max"}
    assert limits == set(shown)


def test_the_counters_of_the_limits_are_in_the_catalogue() -> None:
    text = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.split("\n## Limits\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z_]+)\{", section))
    assert named
    assert {f"penstock_{name}_total" for name in named} <= set(CATALOGUE)
    for ending in Ending:
        assert f"{{{ending.value}}}" in section
