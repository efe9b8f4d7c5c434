"""Runs a command and writes down how much time of the processor it took, with all of its processes.

Called by run.py: `tree_time.py FILE COMMAND...`. Processes whose parents were killed become
children of this one, as they would of init, so that the drivers, JVMs and agents that tests orphan
are counted. Where the system has no such thing (macOS) they are not.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Be the parent of processes below this one whose own has died."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> int:
    """Returns: the exit status of the command."""
    adopt_orphans()
    with subprocess.Popen(sys.argv[2:]) as process:
        # An interrupt of the run is the command's to handle.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        status = 1
        while True:
            pid, ended = os.wait()
            if pid == process.pid:
                status = process.returncode = os.waitstatus_to_exitcode(ended)
                break
    # What was orphaned and has ended; what has not is of no more use to anything.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(sys.argv[1]).write_text(f"{used.ru_utime + used.ru_stime:.2f}")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
