"""The workloads of the comparison: which program runs, against which servers, with what options."""

from __future__ import annotations

from dataclasses import dataclass

FSYNC = ("--topic-config", "flush.messages=1")
IDEMPOTENT = ("--idempotence",)


@dataclass(frozen=True, slots=True)
class Case:
    """One workload.

    Args:
        name: what WORKLOADS= and the results call it.
        program: "logbench", or a module of this folder.
        contenders: which servers run it.
        arguments: of the program.
        kafka_arguments: further ones for Kafka alone.
    """

    name: str
    program: str
    contenders: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    kafka_arguments: tuple[str, ...] = ()


BOTH = ("kafka", "penstock")

CASES = (
    Case("start", "start", BOTH),
    Case("produce-1k", "logbench", BOTH, ("--workload", "produce-1k", *IDEMPOTENT)),
    Case("produce-100b", "logbench", BOTH, ("--workload", "produce-100b", *IDEMPOTENT)),
    Case("consume-warm", "consume", BOTH, ("--workload", "consume-1k")),
    Case("consume-cold", "consume-cold", BOTH, ("--workload", "consume-1k")),
    Case("fan", "logbench", BOTH, ("--workload", "fan", *IDEMPOTENT)),
    # One run gives the latency with fsync and the cost of a steady trickle. Kafka's cost is taken
    # at its defaults, its latency with a flush per message.
    Case("latency-fsync", "logbench", BOTH, ("--workload", "latency", *IDEMPOTENT), FSYNC),
    Case(
        "latency",
        "logbench",
        ("kafka", "penstock-nofsync"),
        ("--workload", "latency", *IDEMPOTENT),
    ),
    Case("connections", "logbench", BOTH, ("--workload", "connections")),
    Case("fanout", "fanout", BOTH),
    Case("partitions", "partitions", BOTH),
)


def chosen(names: str) -> list[Case]:
    """The cases of a comma list; all for an empty one.

    Raises: SystemExit for an unknown name.
    """
    known = {case.name: case for case in CASES}
    wanted = [name for name in names.replace(" ", ",").split(",") if name]
    for name in wanted:
        if name not in known:
            raise SystemExit(f"no workload {name}; there are {', '.join(known)}")
    return [known[name] for name in wanted] if wanted else list(CASES)
