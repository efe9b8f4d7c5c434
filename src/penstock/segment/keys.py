"""Names of segment objects. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

SEGMENTS_PREFIX: Final = "segments/"

_NUMBER: Final = r"(0|[1-9][0-9]{0,18})"
_NAME: Final = r"[0-9a-f]{32}"
_JOB_KEY: Final = re.compile(rf"segments/([0-9a-f]{{2}})/job-{_NUMBER}-({_NAME})\.seg", re.ASCII)
_KEY: Final = re.compile(rf"segments/([0-9a-f]{{2}})/{_NUMBER}-{_NUMBER}-{_NUMBER}\.seg", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKey:
    """Names a segment: the agent and epoch that wrote it, and its number among their segments."""

    agent: int
    epoch: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """Names a segment of a job of the pipeline, by the random name of the attempt."""

    job: int
    name: str


def job_object_key(*, job: int, name: str) -> str:
    """The key of a segment that an attempt of a job's task writes.

    Args:
        name: 32 hexadecimal digits at random, so that no two attempts meet.
    """
    assert job > 0, job
    assert re.fullmatch(_NAME, name), name
    text = f"job-{job}-{name}"
    return f"{SEGMENTS_PREFIX}{_hash(text)}/{text}.seg"


def parse_job_key(key: str) -> JobKey | None:
    """The parts of a job's key; None if `job_object_key` never gives such a key."""
    match = _JOB_KEY.fullmatch(key)
    if match is None:
        return None
    digits, job, name = match.groups()
    if _hash(f"job-{job}-{name}") != digits:
        return None
    return JobKey(job=int(job), name=name)


def object_key(*, agent: int, epoch: int, n: int) -> str:
    """The key of the n-th segment that an agent's epoch writes."""
    assert min(agent, epoch, n) >= 0, (agent, epoch, n)
    name = f"{agent}-{epoch}-{n}"
    return f"{SEGMENTS_PREFIX}{_hash(name)}/{name}.seg"


def epoch_prefixes(*, agent: int, epoch: int) -> list[str]:
    """The prefixes that the keys of an agent's epoch begin with: 256, one per hash."""
    return [f"{SEGMENTS_PREFIX}{digits:02x}/{agent}-{epoch}-" for digits in range(256)]


def parse_object_key(key: str) -> SegmentKey | None:
    """The parts of a segment's key; None if `object_key` never gives such a key."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    digits, agent, epoch, n = match.groups()
    if _hash(f"{agent}-{epoch}-{n}") != digits:
        return None
    return SegmentKey(agent=int(agent), epoch=int(epoch), n=int(n))


def _hash(name: str) -> str:
    return f"{crc32c(name.encode()) & 0xFF:02x}"
