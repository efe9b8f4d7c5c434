"""The offset at which a share group begins to read a partition that it never read."""

import re
from typing import Final

from penstock.groups.share.configs import BY_DURATION, EARLIEST, READ_COMMITTED, ShareConfigs
from penstock.log import Log
from penstock.model.ids import PartitionKey

_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,3})\d*)?S)?)?", re.IGNORECASE
)


def duration_ms(text: str) -> int | None:
    """Read an ISO 8601 duration of days, hours, minutes and seconds; None: it isn't one."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    thousandths = int((match.group(5) or "").ljust(3, "0"))
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + thousandths


async def start_offset(log: Log, key: PartitionKey, configs: ShareConfigs, now_ms: int) -> int:
    """Find where to begin, by the group's reset policy."""
    policy = configs.auto_offset_reset
    committed = configs.isolation_level == READ_COMMITTED
    end = log.last_stable_offset(key) if committed else log.high_watermark(key)
    if policy == EARLIEST:
        return log.log_start(key)
    if policy.startswith(BY_DURATION):
        back_ms = duration_ms(policy.removeprefix(BY_DURATION))
        if back_ms is not None:
            place = await log.offset_for_time(key, max(0, now_ms - back_ms))
            return end if place is None else min(place[0], end)
    return end
