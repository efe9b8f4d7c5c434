"""Loading kio's messages."""

import subprocess
import sys


def test_a_server_does_not_load_hypothesis_for_kio() -> None:
    """It would stand still for seconds, wherever tests' libraries are installed beside it."""
    code = (
        "import sys; from penstock.kafka.wire import schema; schema.response_types('heartbeat', 3);"
        "assert 'kio' in sys.modules; assert 'hypothesis' not in sys.modules; import hypothesis"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
