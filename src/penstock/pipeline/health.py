"""Says whether `penstock pipeline run` keeps up: by its engine, the oldest lag, and the share of
dead letters. Pure."""

from dataclasses import dataclass

from penstock.pipeline.table_watch import WINDOW_S, DeadLetters, Lag


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of /health."""

    is_ok: bool
    text: str


def health(
    *,
    is_ready: bool,
    engine: str,
    oldest: Lag,
    silent_s: float,
    alarm_s: float,
    worst: DeadLetters,
    alarm_share: float,
) -> Health:
    """Return what /health says.

    Args:
        is_ready: whether the engine takes jobs.
        engine: its state, and what is wrong with it.
        oldest: lag of all tables.
        silent_s: for how long no agent has said how far they are.
        alarm_s: a lag, or a silence, that is longer isn't healthy.
        worst: the greatest share of dead letters of all tables.
        alarm_share: a share above it isn't healthy; 1: none is above it.
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
    is_bad = worst.share > alarm_share
    if worst.table:
        above = f", above {100 * alarm_share:g} %" if is_bad else ""
        lines.append(
            f"dead letters: {100 * worst.share:.2f} % of {worst.records:,} records"
            f" in the last {WINDOW_S / 60:.0f} minutes, table {worst.table}{above}"
        )
    is_ok = is_ready and not is_late and not is_silent and not is_bad
    return Health(is_ok, "\n".join(["ok" if is_ok else "not ok", *lines, ""]))
