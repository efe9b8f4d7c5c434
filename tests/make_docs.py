"""Write the pages of docs/ that are made from code, each by a module of tests/pages.

`tests/unit/test_docs.py` holds them to it.
"""

import sys
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from pages.cli import cli_page  # noqa: E402
from pages.kafka import apis_page, topic_configs_page  # noqa: E402
from pages.metrics import metrics_page  # noqa: E402
from pages.settings import settings_page  # noqa: E402

PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "cli.md": cli_page,
    "kafka-apis.md": apis_page,
    "topic-configs.md": topic_configs_page,
}


def main() -> None:
    """Write them."""
    for name, make in PAGES.items():
        (REPOSITORY / "docs" / name).write_text(make(), encoding="utf-8")
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
