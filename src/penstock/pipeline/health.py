"""Says whether `penstock pipeline run` keeps up, by its engine and by the oldest lag. Pure."""

from dataclasses import dataclass

from penstock.pipeline.table_watch import Lag


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of /health."""

    is_ok: bool
    text: str


def health(*, is_ready: bool, engine: str, oldest: Lag, silent_s: float, alarm_s: float) -> Health:
    """Return what /health says.

    Args:
        is_ready: whether the engine takes jobs.
        engine: its state, and what is wrong with it.
        oldest: lag of all tables.
        silent_s: for how long no agent has said how far they are.
        alarm_s: a lag, or a silence, that is longer isn't healthy.
    """
    is_late = oldest.seconds > alarm_s
    is_silent = silent_s > alarm_s
    lines = [f"engine: {engine}"]
    if oldest.table:
        late = f", above {alarm_s:g} s" if is_late else ""
        lines.append(f"oldest lag: {oldest.seconds:.1f} s, table {oldest.table}{late}")
    else:
        lines.append("oldest lag: none")
    if is_silent:
        lines.append(f"agents: no answer for {silent_s:.0f} s, above {alarm_s:g} s")
    is_ok = is_ready and not is_late and not is_silent
    return Health(is_ok, "\n".join(["ok" if is_ok else "not ok", *lines, ""]))
