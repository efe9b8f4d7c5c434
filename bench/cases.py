"""The workloads of the comparison: which program runs, against which servers, with what options."""

from __future__ import annotations

from dataclasses import dataclass

FSYNC = ("--topic-config", "flush.messages=1")


@dataclass(frozen=True, slots=True)
class Case:
    """One workload.

    Args:
        name: what WORKLOADS= and the results call it.
        program: "load" (`penstock bench`), or a module of this folder.
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
    # An idempotent producer has five requests in flight, one that isn't as many as it likes.
    Case("produce-1k", "load", BOTH, ("produce", "--no-idempotent")),
    Case("produce-1k-idempotent", "load", BOTH, ("produce", "--idempotent")),
    Case(
        "produce-100b-idempotent",
        "load",
        BOTH,
        ("produce", "--idempotent", "--value-bytes", "100", "--records", "3000000"),
    ),
    Case("consume-warm", "consume", BOTH),
    Case("consume-cold", "consume-cold", BOTH),
    Case("fan", "load", BOTH, ("fan", "--seconds", "15", "--warmup", "2")),
    # One run gives the latency with fsync and the cost of a steady trickle. Kafka's cost is taken
    # at its defaults, its latency with a flush per message.
    Case("latency-fsync", "load", BOTH, ("latency",), FSYNC),
    Case("latency", "load", ("kafka", "penstock-nofsync"), ("latency",)),
    Case("connections", "load", BOTH, ("connections",)),
    Case("fanout", "fanout", BOTH),
    Case("partitions", "partitions", BOTH),
    Case("transactions", "transactions", BOTH),
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
