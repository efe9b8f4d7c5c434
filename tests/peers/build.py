"""Build the second S3 server, versitygw, with Go, or say what is missing.

    python tests/peers/build.py

It is built from its Go module, in the version below, into .peers/ (some minutes at the first time,
nothing afterwards). Unlike moto it checks signatures. Exit status 0 also where there is no Go:
the tests that need it are skipped then, and say so.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

MODULE = "github.com/versity/versitygw/cmd/versitygw"
VERSION = "v1.8.0"
FOLDER = Path(__file__).resolve().parents[2] / ".peers"
BINARY = FOLDER / f"versitygw-{VERSION}"
SECONDS_MAX = 1800


def build() -> str:
    """Build it unless it is there. Returns: what is missing, or ""."""
    if BINARY.is_file():
        return ""
    go = shutil.which("go")
    if go is None:
        return "there is no go on the PATH, which builds versitygw"
    FOLDER.mkdir(exist_ok=True)
    print(f"building {MODULE}@{VERSION}, which takes some minutes", flush=True)
    environment = {**os.environ, "GOBIN": str(FOLDER), "GOFLAGS": "-trimpath"}
    try:
        done = subprocess.run(
            [go, "install", f"{MODULE}@{VERSION}"],
            env=environment,
            timeout=SECONDS_MAX,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"versitygw was not built within {SECONDS_MAX} s"
    if done.returncode:
        return f"versitygw could not be built: {done.stderr.strip()[-500:]}"
    (FOLDER / "versitygw").rename(BINARY)
    return ""


if __name__ == "__main__":
    missing = build()
    print(missing or f"second S3 server: {BINARY}")
    sys.exit(0)
