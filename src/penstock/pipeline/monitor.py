"""`penstock pipeline run` serves its own state over HTTP: /metrics, /v1/status, /health."""

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

from penstock.observability.metrics import Metrics
from penstock.pipeline.engine_process.keeper import EngineStatus
from penstock.pipeline.health import Health
from penstock.pipeline.lag import Behind
from penstock.pipeline.schedule import Outcome, Schedule, Work
from penstock.version import VERSION

RUNS: Final = "penstock_pipeline_job_runs_total"
FAILURES: Final = "penstock_pipeline_job_failures_total"
SECONDS: Final = "penstock_pipeline_job_duration_seconds"
ENGINE_UP: Final = "penstock_pipeline_engine_up"
ENGINE_STARTS: Final = "penstock_pipeline_engine_starts_total"


def count(metrics: Metrics, outcome: Outcome) -> None:
    """Count a run."""
    metrics.add(FAILURES if outcome.error else RUNS, 1, outcome.name)
    metrics.histogram(SECONDS, outcome.name).observe(outcome.seconds)


def counted(find: Callable[[], Iterable[Work]], metrics: Metrics) -> Callable[[], Iterable[Work]]:
    """Find jobs, and count each at 0: an alert on its first failure fires."""

    def found() -> Iterable[Work]:
        works = list(find())
        for work in works:
            metrics.add(RUNS, 0, work.name)
            metrics.add(FAILURES, 0, work.name)
            metrics.histogram(SECONDS, work.name)
        return works

    return found


def engine_figures(engine: EngineStatus, *, is_ready: bool) -> dict[str, float]:
    """Values of the engine's metrics."""
    return {ENGINE_UP: float(is_ready), ENGINE_STARTS: float(engine.starts)}


def status_of(
    schedule: Schedule, engine: EngineStatus, lags: Mapping[str, Behind]
) -> dict[str, Any]:
    """The engine, and all jobs and tables that this process knows, as JSON."""
    return {
        "version": VERSION,
        "engine": {
            "state": engine.state.value,
            "engine": engine.shown,
            "problem": engine.problem,
            "starts": engine.starts,
            "pids": engine.pids,
        },
        "tables": {
            name: {"behind_records": found.records, "behind_seconds": round(found.seconds, 3)}
            for name, found in lags.items()
        },
        "jobs": {
            state.work.name: {
                "running": state.is_running,
                "runs": state.run_count,
                "failures": state.failure_count,
                "failures_in_a_row": state.failures_in_a_row,
                "done_ms": state.done_ms,
                "error": state.error,
                "summary": state.summary,
            }
            for state in schedule.states()
        },
    }


class Monitor:
    """A small server in a thread; a context manager.

    Args:
        address: host and port; port 0 gives a free one, `port` says which.
        status: what /v1/status answers.
        health: what /health answers, with 503 where it isn't well.
    """

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Metrics,
        status: Callable[[], dict[str, Any]],
        health: Callable[[], Health],
    ) -> None:
        from penstock.observability.exposition import CONTENT_TYPE, Exposition

        exposition = Exposition(metrics, version=VERSION)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(exposition.text(), CONTENT_TYPE)
                elif self.path == "/v1/status":
                    self._answer(json.dumps(status(), default=str).encode(), "application/json")
                elif self.path == "/health":
                    found = health()
                    self._answer(
                        found.text.encode(),
                        "text/plain; charset=utf-8",
                        HTTPStatus.OK if found.is_ok else HTTPStatus.SERVICE_UNAVAILABLE,
                    )
                else:
                    self.send_error(HTTPStatus.NOT_FOUND)

            def _answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Log nothing, since a scrape is not an event."""

        self._server = ThreadingHTTPServer(address, Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="monitor", daemon=True
        )

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
