"""Committing what items have made, in the job's own numbering."""

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.api_messages import Replaced, ReplaceRequest
from penstock.pipeline.client import PipelineClient, RefusedError
from penstock.pipeline.compaction.items import ItemDone

_OUT_OF_ORDER = "out_of_order_commit"


class Committer:
    """Sends the commits of one job, one after the other, numbered from 1 on. One thread.

    A commit that is refused as a whole has used its number up if it came into the journal, and has
    not if the agent refused it before. So after one the numbers that are possible are tried from
    the greatest down: one that was used is never sent again with other content, which would get
    the answer of the first.
    """

    def __init__(self, client: PipelineClient, job: int) -> None:
        self._client = client
        self._job = job
        self._used = 0
        """Used up for certain, and"""
        self._sent = 0
        """perhaps up to here."""

    def commit(self, done: ItemDone) -> Replaced:
        """Make an item's objects live.

        Raises:
            RefusedError, InvalidRequestError: as a whole, for good; nothing changed.
            FencedError: the job is over.
            RetryableError: whether it was committed is unknown.
        """
        for n in range(self._sent + 1, self._used + 1, -1):
            try:
                return self._send(done, n)
            except RefusedError as error:
                if error.reason != _OUT_OF_ORDER:
                    raise
        return self._send(done, self._used + 1)

    def _send(self, done: ItemDone, n: int) -> Replaced:
        request = ReplaceRequest(
            job=self._job,
            n=n,
            input_keys=done.input_keys,
            objects=done.objects,
            partitions=done.partitions,
        )
        try:
            answer = self._client.replace(request)
        except (RefusedError, InvalidRequestError) as error:
            if not isinstance(error, RefusedError) or error.reason != _OUT_OF_ORDER:
                self._sent = max(self._sent, n)
            raise
        self._used = self._sent = n
        return answer
