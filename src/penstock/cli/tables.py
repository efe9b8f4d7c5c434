"""Commands print aligned tables and counts for people, and JSON for programs."""

import json
from collections.abc import Sequence

import click


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns as wide as their widest cell, numbers to the right; only the header if there
    are no rows."""
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [
        max(len(title), *(len(row[column]) for row in cells)) if cells else len(title)
        for column, title in enumerate(header)
    ]
    numeric = [
        bool(rows) and all(_is_number(row[column]) for row in rows) for column in range(len(header))
    ]
    for line in ([title.upper() for title in header], *cells):
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 record", "1,234 records".

    Args:
        plural: the noun's plural where that is not the noun with an "s".
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _is_number(cell: object) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return str(cell)
