"""`penstock repair` asks every server of a log about damage, and makes one list of the answers.

Each agent of a cluster, and each worker of a host, knows the damage that it has met itself, and
reads its own WAL alone. So every server is asked; a run in a WAL is looked at by the WAL's owner.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.cli.client.http import JsonObject, base_url, call, call_with_progress
from penstock.cli.tables import counted
from penstock.model.errors import PenstockError

_PATH: Final = "/v1/repair/damage"
_PLACES_MAX: Final = 10_000
_WEIGHT: Final = {"damaged": 1, "right": 0, "unknown": -1}
"""Among several servers' answers about one run the one with the greatest weight counts. "unknown"
mostly comes from a server that can't read the run's place."""

Run: TypeAlias = JsonObject
"""A run as POST /v1/repair/damage describes it, with `server`: the name of the answering server."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server, worker or agent. `name` is shown to people."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Absent:
    """A server that wasn't asked or gave no answer, and the reason. Damage that only this server
    knows isn't listed."""

    name: str
    reason: str


class DamagedRuns:
    """Asks the servers of one log.

    Args:
        url: the URL of one of the servers.
        only: whether only this server is asked.
        timeout_s: the longest wait for each answer.
    """

    def __init__(self, url: str, *, only: bool, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.absent: list[Absent] = []
        self.servers = [Server("this server", base_url(url))]
        if not only:
            self._find_others(url)

    def look(self, source: str = "") -> list[Run]:
        """List all runs that any server knows to be damaged, after reading each run again, with the
        places of copies.

        Args:
            source: a directory or URL in which the servers also look for copies.

        Raises:
            PenstockError: the first server refused, or doesn't answer.
        """
        found: dict[tuple[int, int, str], Run] = {}
        for server in self.servers:
            for run in self._ask(server, "find", None, source=source):
                _merge(found, run)
        for server in self.servers:
            # A run may lie in another server's WAL, or have a copy in another's memory or WAL.
            sought = [
                run
                for run in found.values()
                if run["server"] != server.name and run["state"] != "right" and not run["copy"]
            ]
            for at in range(0, len(sought), _PLACES_MAX):
                part = sought[at : at + _PLACES_MAX]
                for seen in self._ask(server, "find", part, source=source):
                    _merge(found, seen)
        return sorted(found.values(), key=lambda run: (run["partition_key"], run["start"]))

    def act(self, action: str, runs: Sequence[Run], **others: object) -> list[Run]:
        """Let the servers act on runs; each server acts on the runs that it has judged."""
        results: list[Run] = []
        for server in self.servers:
            own = [run for run in runs if run["server"] == server.name]
            for at in range(0, len(own), _PLACES_MAX):
                part = own[at : at + _PLACES_MAX]
                results += self._ask(server, action, part, **others)
        return results

    def scan(self, bytes_per_s: int, progress: Callable[[int, int], None]) -> JsonObject:
        """Let the servers read everything stored: the first server reads the objects, each its WAL.

        Returns:
            The sums of "bytes", "runs" and "damaged" over all servers.
        """
        lock = threading.Lock()
        done: dict[str, tuple[int, int]] = {}
        total: dict[str, int] = {"bytes": 0, "runs": 0, "damaged": 0}

        def read(numbered: tuple[int, Server]) -> None:
            number, server = numbered

            def watch(far: int, whole: int) -> None:
                with lock:
                    done[server.name] = (far, whole)
                    fars, wholes = zip(*done.values(), strict=True)
                    progress(sum(fars), sum(wholes))

            try:
                scanned = self._scan(server, bytes_per_s, objects=not number, watch=watch)
            except PenstockError as error:
                if not number:
                    raise
                with lock:
                    self._is_absent(server, str(error))
                return
            with lock:
                for name in total:
                    total[name] += scanned[name]

        with ThreadPoolExecutor(len(self.servers)) as threads:
            list(threads.map(read, enumerate(self.servers)))
        return total

    def lost(self) -> list[JsonObject]:
        """List offsets whose loss was accepted. All servers know them from the journal."""
        ranges: list[JsonObject] = []
        while True:
            after = [ranges[-1]["partition_key"], ranges[-1]["start"]] if ranges else [-1, -1]
            page = call(
                "repair",
                self.servers[0].url,
                "/v1/repair/lost",
                method="POST",
                body={"after": after},
                timeout_s=self._timeout_s,
            )["ranges"]
            if not page:
                return ranges
            ranges += page

    def rebuild(
        self, server: str, key: int, start: int, end: int, batches: bytes, *, accept_loss: bool
    ) -> JsonObject:
        """Fill lost offsets of a range with records from batches.

        Args:
            server: the name of the server that has judged the run; any other text: the first
                server.

        Raises:
            PenstockError: the server refused the batches, or doesn't answer.
        """
        chosen = next((one for one in self.servers if one.name == server), self.servers[0])
        query = f"partition_key={key}&start={start}&end={end}&accept_loss={int(accept_loss)}"
        return call(
            "rebuild",
            chosen.url,
            f"/v1/repair/rebuild?{query}",
            method="POST",
            data=batches,
            timeout_s=self._timeout_s,
        )

    # -- inside ----------------------------------------------------------------------------------

    def _find_others(self, url: str) -> None:
        status = call("repair", url, "/v1/status", timeout_s=self._timeout_s)
        if status.get("agents") is None and status.get("workers") is None:
            return
        listed = call("repair", url, "/v1/agents", timeout_s=self._timeout_s)["agents"]
        first = self.servers[0].url
        self.servers = []
        for agent in listed:
            name = f"agent {agent['id']}"
            if agent["id"] == status["node_id"]:
                self.servers.insert(0, Server(name, first))
            elif agent["status"] == "fenced":
                if agent["wal_runs"]:
                    runs = counted(agent["wal_runs"], "run")
                    reason = f"it is not running, and its WAL holds {runs}"
                    self.absent.append(Absent(name, reason))
            elif not agent["http"]:
                self.absent.append(Absent(name, "the address of its HTTP port is not known"))
            else:
                self.servers.append(Server(name, base_url(agent["http"])))

    def _is_absent(self, server: Server, reason: str) -> None:
        if all(absent.name != server.name for absent in self.absent):
            self.absent.append(Absent(server.name, reason))

    def _ask(
        self, server: Server, action: str, runs: Sequence[Run] | None, **others: object
    ) -> list[Run]:
        places = None if runs is None else [[run["partition_key"], run["start"]] for run in runs]
        try:
            answer = call(
                "repair",
                server.url,
                _PATH,
                method="POST",
                body={"action": action, "places": places, **others},
                timeout_s=self._timeout_s,
            )
        except PenstockError as error:
            if server is self.servers[0] or action != "find":
                raise
            self._is_absent(server, str(error))
            return []
        return [run | {"server": server.name} for run in answer["runs"]]

    def _scan(
        self,
        server: Server,
        bytes_per_s: int,
        *,
        objects: bool,
        watch: Callable[[int, int], None],
    ) -> dict[str, int]:
        return call_with_progress(
            "scan",
            server.url,
            "/v1/repair/scan",
            body={"bytes_per_s": bytes_per_s, "objects": objects},
            result="scanned",
            watch=watch,
        )


def _merge(found: dict[tuple[int, int, str], Run], run: Run) -> None:
    name = (run["partition_key"], run["start"], run["place"])
    known = found.get(name)
    if known is None or _weight(run) > _weight(known):
        found[name] = run


def _weight(run: Run) -> tuple[int, bool]:
    return _WEIGHT[run["state"]], bool(run["copy"])
