"""A cluster on this machine starts with one command, as the README says."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from support.ports import adjacent_ports

SCRIPT = Path(__file__).resolve().parents[2] / "demo" / "cluster.py"


def test_agents_on_ports_in_a_row_start_and_stop() -> None:
    """The port on which an agent serves the others is none of another agent's."""
    kafka, http = adjacent_ports(2), adjacent_ports(4)
    command = [sys.executable, str(SCRIPT), "--agents", "2"]
    command += ["--kafka-port", str(kafka), "--http-port", str(http)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C drains" in line:
                process.send_signal(signal.SIGINT)
    output = "".join(lines)
    assert process.returncode == 0, output
    assert "2 agents, one cluster" in output
