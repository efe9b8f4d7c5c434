"""What keeps a job from running on executors, decided from what they told."""

import pytest

from penstock.pipeline.session import Executor, executors_problem, is_local


def executor(**changed: str) -> Executor:
    fields = {"python": "3.11", "penstock": "0.1.0", "pyarrow": "20", "numba": "0.60"}
    return Executor(**({"host": "a"} | fields | changed))


def test_the_same_versions_are_no_problem() -> None:
    assert (
        executors_problem([executor(), executor(host="b")], python="3.11", penstock="0.1.0") == ""
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"python": "3.12"}, "b runs Python 3.12, the driver 3.11"),
        ({"penstock": ""}, "b has no Penstock"),
        ({"penstock": "0.2.0"}, "b has Penstock 0.2.0, the driver 0.1.0"),
        ({"numba": ""}, "b has no numba"),
        ({"pyarrow": ""}, "b has no pyarrow"),
    ],
)
def test_a_problem_names_the_host_and_both_versions(changed: dict[str, str], told: str) -> None:
    problem = executors_problem(
        [executor(), executor(host="b", **changed)], python="3.11", penstock="0.1.0"
    )
    assert problem.startswith(told)


def test_a_local_master_is_known() -> None:
    assert [is_local(text) for text in ("local", "local[*]", "local[2,3]")] == [True] * 3
    assert not any(map(is_local, ("local-cluster[2,1,1024]", "spark://a:7077", "sc://a", "yarn")))
