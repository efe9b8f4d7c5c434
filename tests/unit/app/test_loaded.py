"""What a server loads."""

import subprocess
import sys


def test_a_server_at_its_defaults_loads_no_numba() -> None:
    """It would double the memory of a small one."""
    script = (
        "import sys, penstock.app.embedded_parts, penstock.kafka.handlers.produce;"
        "sys.exit('numba' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
