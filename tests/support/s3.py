"""A real S3 server over HTTP for tests: moto in server mode, in a process of its own.

What it is not: Amazon's S3. It checks no signatures and is slow, but speaks the protocol over real
sockets: conditional puts, multipart uploads, listings in pages. `make peers` runs a second,
independent server.
"""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from support.ports import free_port

READY_SECONDS_MAX = 120.0
ACCESS_KEY = "penstock-test"
SECRET_KEY = "penstock-test-secret"
REGION = "us-east-1"

_bucket_numbers = itertools.count(1)


class S3NotReadyError(Exception):
    """The server ended, or did not answer in time; carries the end of its log."""


@dataclass
class S3Server:
    """One S3 server process; `start`, then `stop`. Its objects end with it.

    Args:
        log: where its output goes.
    """

    log: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        """http://HOST:PORT"""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process finds the server."""
        return environment(self.endpoint)

    def start(self) -> S3Server:
        """Start it and wait until it answers.

        Raises:
            S3NotReadyError: it ended or did not answer in time.
        """
        self.port = self.port or free_port()
        with self.log.open("ab") as log:
            self.process = self._spawn(log)
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise S3NotReadyError(self.log.read_text(errors="replace")[-2000:])
            time.sleep(0.05)
        return self

    def make_bucket(self, name: str = "") -> str:
        """A new, empty bucket."""
        name = name or f"bucket-{os.getpid()}-{next(_bucket_numbers)}"
        status = request(self.endpoint, "PUT", f"/{name}")
        assert status == 200, f"bucket {name}: HTTP {status}"
        return name

    def kill(self) -> None:
        """SIGKILL: its objects are gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None

    def stop(self) -> None:
        """End it; idempotent."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(60)
        self.process = None

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def _answers(self) -> bool:
        try:
            return request(self.endpoint, "GET", "/") < 500
        except OSError:
            return False


def environment(endpoint: str) -> dict[str, str]:
    """Variables with which `penstock.objects.opening` finds an S3 server at an endpoint."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
    }


def request(endpoint: str, method: str, path: str, body: bytes = b"") -> int:
    """One unsigned request; its HTTP status. Raises: OSError when nobody answers."""
    url = urlsplit(endpoint)
    assert url.hostname is not None
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


@dataclass
class VersityServer(S3Server):
    """versitygw, which `tests/peers/build.py` builds: an independent S3 server that checks
    signatures and keeps its objects in files.

    Args:
        binary: the program.
    """

    binary: Path = Path("versitygw")

    @property
    def root(self) -> Path:
        """The folder whose folders are buckets."""
        return self.log.with_suffix(".buckets")

    def make_bucket(self, name: str = "") -> str:
        """A new, empty bucket."""
        name = name or f"bucket-{os.getpid()}-{next(_bucket_numbers)}"
        (self.root / name).mkdir()
        return name

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        self.root.mkdir(exist_ok=True)
        metadata = self.log.with_suffix(".metadata")
        metadata.mkdir(exist_ok=True)
        return subprocess.Popen(
            [
                self.binary,
                f"--port=127.0.0.1:{self.port}",
                f"--access={ACCESS_KEY}",
                f"--secret={SECRET_KEY}",
                f"--region={REGION}",
                "--quiet",
                "--keep-alive",
                "posix",
                # Beside the objects, since not every file system has extended attributes.
                f"--sidecar={metadata}",
                str(self.root),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
