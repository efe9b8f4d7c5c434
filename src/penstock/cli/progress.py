"""A progress line is drawn on standard error if that is a terminal, and never into a pipe."""

import sys
import time
from types import TracebackType
from typing import Final, Self

REDRAW_S: Final = 0.1
BAR_CELLS: Final = 24


class Progress:
    """One line that is drawn again and again, and erased at the end.

    Args:
        label: the name of the counted things, for example "records".
        total: the value of `done` at the end; None: not known.
        enabled: whether the line is drawn; None: if standard error is a terminal.
    """

    def __init__(self, label: str, *, total: int | None, enabled: bool | None = None) -> None:
        self._label = label
        self.total = total
        self._enabled = sys.stderr.isatty() if enabled is None else enabled
        self._started_s = time.monotonic()
        self._drawn_s = self._started_s
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def update(self, done: int, count: int) -> None:
        """Draw the line for the present progress.

        Args:
            done: the part of `total` that is done, for the bar.
            count: the number of counted things so far, for the number and the rate.
        """
        if not self._enabled:
            return
        now_s = time.monotonic()
        if now_s - self._drawn_s < REDRAW_S:
            return
        self._drawn_s = now_s
        self._drawn = True
        sys.stderr.write(f"\r{self.line(done, count, now_s - self._started_s)}\x1b[K")
        sys.stderr.flush()

    def line(self, done: int, count: int, elapsed_s: float) -> str:
        """Return the text of the line."""
        rate = count / elapsed_s if elapsed_s > 0 else 0.0
        text = f"{count:,} {self._label}  {rate:,.0f}/s"
        if not self.total:
            return text
        share = min(1.0, done / self.total)
        filled = int(share * BAR_CELLS)
        bar = "#" * filled + "." * (BAR_CELLS - filled)
        return f"[{bar}] {share:4.0%}  {text}"
