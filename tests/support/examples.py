"""How many examples a property has: the profile says it, a property at most by which factor.

`--hypothesis-profile=check` is for `make check`, `thorough` for an afternoon; without one it is
`test`, as in `make test`.
"""

from typing import Final

from hypothesis import HealthCheck, settings

EXAMPLES: Final = {"check": 8, "test": 40, "thorough": 2000}
"""Of a property that costs a few milliseconds per example, by profile."""
EXAMPLES_MIN: Final = 5


def register_profiles() -> None:
    """Make them known to Hypothesis, and load `test`."""
    for name, count in EXAMPLES.items():
        # Deadlines are off, since a shared machine may pause for longer than any of them.
        settings.register_profile(
            name, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=count
        )
    settings.load_profile("test")


def examples(factor: float) -> int:
    """The loaded profile's number of examples times a factor: below 1 for a property whose examples
    are much dearer than others', above 1 for one whose examples cost next to nothing."""
    return max(EXAMPLES_MIN, round(settings().max_examples * factor))
