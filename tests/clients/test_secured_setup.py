"""The set-up of docs/security.md, line by line, on other ports."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.ports import adjacent_ports

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
SECONDS_MAX = 240


def test_a_user_of_scram_reads_what_was_sent_over_tls(tmp_path: Path) -> None:
    if not (shutil.which("openssl") and shutil.which("bash")):
        pytest.skip("there is no openssl, or no bash")
    found = re.search(r"```sh\n(openssl .*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    port = adjacent_ports(3)
    script = found[1].replace(":9092", f":{port}").replace(":9093", f":{port + 1}")
    assert script.count(str(port)) >= 2
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PENSTOCK_HTTP": f"127.0.0.1:{port + 2}",
        "PENSTOCK_STATUS_URL": f"127.0.0.1:{port + 2}",
    }
    with subprocess.Popen(
        # Where a line fails, the server must end, too: it has the pipes that are read here.
        ["bash", "-euc", f"trap 'kill %1; wait %1' EXIT\n{script}"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            # The shell and the server that it has started.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, errors
    lines = output.splitlines()
    assert "saved 2 credentials of alice" in lines
    assert "hello" in lines
