"""A server's own compaction: `compaction = "self"`.

The scheduler of `penstock pipeline run` is a thread here; what it runs is in a child process with
threads, without Spark, at the lowest priority. So the event loop shares nothing with it but a few
calls of the pipeline API, and a child that is killed is followed by another. The child ends when
this process is gone, since their socket does.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from penstock.model.errors import PenstockError
from penstock.observability.metrics import Metrics
from penstock.peers.secret import ClusterSecret
from penstock.pipeline.client import ClientOptions
from penstock.pipeline.engine_choice import LOCAL, EngineChoice
from penstock.pipeline.jobs import Intervals, JobSettings
from penstock.pipeline.running import PipelineRun, RunSettings
from penstock.pipeline.schedule import Outcome

logger = logging.getLogger(__name__)

THREADS: Final = 2
"""Most that compaction of one server takes of a host's processors."""
DRAIN_S: Final = 2.0
"""A job that is cut off leaves objects that no entry names, which are deleted."""
NICE: Final = 19


class SelfCompaction:
    """Compacts what the server at a URL serves. Event loop: `start`; any thread: the rest.

    Args:
        url: the server's own HTTP port.
        interval_s: seconds between two searches for something to compact.
        metrics: the server's.
        failed: called once, with the reason, if it can never run.
    """

    def __init__(
        self,
        *,
        url: str,
        secret: ClusterSecret | None,
        interval_s: float,
        metrics: Metrics,
        failed: Callable[[PenstockError], None],
    ) -> None:
        self._failed = failed
        self._run = PipelineRun(
            RunSettings(
                api=ClientOptions((url,)),
                engine=EngineChoice(name=LOCAL, workers=THREADS, nice=NICE),
                jobs=JobSettings(),
                intervals=Intervals(compaction_s=interval_s, table_s=0, maintenance_s=0),
                drain_s=DRAIN_S,
            ),
            report=_report,
            say=lambda line: logger.warning("compaction: %s", line),
            metrics=metrics,
            secret=secret,
        )
        metrics.on_scrape(self._run.engine_figures)
        self._thread = threading.Thread(target=self._keep, name="compaction", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, and wait for that: seconds at most. Not on the event loop, which answers jobs."""
        self._run.stop()
        self._thread.join()

    def status(self) -> dict[str, Any]:
        """Return what /v1/status shows of it."""
        return self._run.status()

    def _keep(self) -> None:
        try:
            self._run.run()
        except PenstockError as error:
            self._failed(error)


def _report(outcome: Outcome) -> None:
    if outcome.error:
        logger.warning("%s failed: %s", outcome.name, outcome.error)
    elif outcome.summary.get("items"):
        summary = outcome.summary
        logger.info(
            "%s: %s items, %s runs are %s now, %.1f s",
            outcome.name,
            summary["items"],
            summary.get("runs_before", 0),
            summary.get("runs_after", 0),
            outcome.seconds,
        )
