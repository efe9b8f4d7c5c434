"""The statements of `Queries` about groups, and how files of older versions need them."""

from typing import Final

_ROW: Final = "SELECT group_id, generation, protocol_type, empty_since_ms, state, kind FROM groups"

GROUP: Final = f"{_ROW} WHERE group_id = ?"
GROUPS: Final = f"{_ROW} ORDER BY group_id"
GROUPS_PAGE: Final = f"{_ROW} WHERE group_id > ? ORDER BY group_id LIMIT ?"

_MEMBERS_VERSION: Final = 6
"""The format version that brought members of groups."""


def group_statements_of_version(version: int) -> dict[str, str]:
    """Return what to execute in place of statements, in a file of an older version."""
    if version >= _MEMBERS_VERSION:
        return {}
    # All groups were classic.
    return {
        statement: statement.replace(", kind", ", 0") for statement in (GROUP, GROUPS, GROUPS_PAGE)
    }
