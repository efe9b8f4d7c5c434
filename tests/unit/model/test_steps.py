"""Long work as steps."""

from penstock.model.steps import Steps, at_once


def counted(total: int) -> Steps[str]:
    for _ in range(total):
        yield 1
    return f"{total} done"


def test_steps_run_to_their_result() -> None:
    assert at_once(counted(3)) == "3 done"
    assert at_once(counted(0)) == "0 done"
