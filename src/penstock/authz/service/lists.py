"""Lists that are given out in pages: computed once, at one position, kept for five minutes. Pure.

A page's token names this process, the list and an index. All lists of a process share a room; the
oldest leave it for new ones.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from penstock.authz.service.wire import LimitError
from penstock.model.errors import InvalidRequestError

KEPT_S: Final = 300.0
BYTES_MAX: Final = 256 << 20
_ID_BYTES: Final = 60
"""About what a short text takes besides its characters."""
_TOKEN_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class _Kept:
    key: str
    question: bytes
    ids: list[str]
    page: int
    bytes: int
    made_s: float


class Lists:
    """Keeps lists between their pages. Event loop only.

    Args:
        instance: this process's name in tokens, which no other process has.
    """

    def __init__(self, instance: str, *, bytes_max: int = BYTES_MAX) -> None:
        self._instance = instance
        self._bytes_max = bytes_max
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0
        self._next = 0

    def first(
        self, key: str, question: bytes, ids: list[str], page: int, now_s: float
    ) -> tuple[list[str], str | None]:
        """Give the first page of a list, and the token of the next one; None: this is all.

        Args:
            key: the key that asked; no other may have the next pages.
            question: what the list answers; the next pages are of the same one.
            page: ids of a page.
        Raises:
            LimitError: the list is longer than all lists together may be.
        """
        if len(ids) <= page:
            return ids, None
        size = sum(_ID_BYTES + len(id_) for id_ in ids)
        if size > self._bytes_max:
            detail = f"its ids take {size:,} bytes; {self._bytes_max:,} are allowed in pages"
            raise LimitError("list", "resources", detail, "ask without page_size")
        self._make_room(size, now_s)
        self._next += 1
        name = f"{self._next:x}"
        self._kept[name] = _Kept(key, question, ids, page, size, now_s)
        self._bytes += size
        return ids[:page], self._token(name, page)

    def following(
        self, key: str, question: bytes, token: str, now_s: float
    ) -> tuple[list[str], str | None]:
        """Give the page of a token, and the token of the next one.

        Raises:
            InvalidRequestError: the list isn't kept, or the token isn't one of this list.
        """
        self._make_room(0, now_s)
        instance, _, rest = token[:_TOKEN_MAX].partition(".")
        name, _, index = rest.partition(".")
        kept = self._kept.get(name)
        if (
            instance != self._instance
            or kept is None
            or (kept.key, kept.question) != (key, question)
        ):
            raise InvalidRequestError(
                "list",
                "page",
                f"the list of this page_token isn't kept here (any more, after {KEPT_S:.0f} s)",
                "begin again without page_token",
            )
        start = int(index) if index.isdecimal() and index.isascii() else -1
        if start <= 0 or start % kept.page or start >= len(kept.ids):
            raise InvalidRequestError("list", "page", "the page_token is damaged")
        end = start + kept.page
        following = self._token(name, end) if end < len(kept.ids) else None
        # A page stays after it was given out: a client whose connection broke asks again.
        return kept.ids[start:end], following

    def _token(self, name: str, index: int) -> str:
        return f"{self._instance}.{name}.{index}"

    def _make_room(self, size: int, now_s: float) -> None:
        while self._kept:
            kept = next(iter(self._kept.values()))
            if kept.made_s + KEPT_S > now_s and self._bytes + size <= self._bytes_max:
                return
            self._kept.popitem(last=False)
            self._bytes -= kept.bytes
