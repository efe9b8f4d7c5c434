"""The memory of a server process."""

from __future__ import annotations

from pathlib import Path

from support.server import ServerProcess


def resident_kib(server: ServerProcess) -> int:
    """Of a process that runs, on Linux."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])
