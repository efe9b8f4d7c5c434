"""Newly appended batches become the tail cache, since most readers ask for them next."""

from collections.abc import Iterable
from typing import Final

from penstock.log.append.group_commit import AppendRequest
from penstock.log.append.plan import FramePlan
from penstock.log.fetch.tail import TailCache
from penstock.records.batch import patch_base_offset
from penstock.state.answers import BatchStatus

_PINNED_SHARE: Final = 4
"""A request of which less than one in so many bytes was stored is not kept in memory whole."""


def take_batches(
    tail: TailCache, plan: FramePlan, requests: Iterable[AppendRequest], *, leader_epoch: int
) -> int:
    """Patch the offsets of what was stored of a commit and keep it in the tail cache.

    Returns:
        The bytes that were stored.
    """
    for request in requests:
        _unpin(request)
    stored = 0
    for key, _, group in plan.runs:
        for append in group:
            if append.status is not BatchStatus.STORED:
                continue
            batch, base_offset = append.batch, append.base_offset
            patch_base_offset(batch.view, base_offset, leader_epoch)
            tail.add(key, base_offset, base_offset + batch.record_count, batch.view)
            stored += batch.length
    return stored


def _unpin(request: AppendRequest) -> None:
    """Copy what was stored of a request if it is little of it: views keep the whole request in
    memory, and the tail cache counts only what it was given."""
    stored = 0
    for append in request.appends:
        if append.status is BatchStatus.STORED:
            stored += append.batch.length
    request_bytes = memoryview(request.appends[0].batch.view.obj).nbytes
    if stored * _PINNED_SHARE < request_bytes:
        for append in request.appends:
            append.batch.view = memoryview(bytearray(append.batch.view))
