"""Get the further object stores and clients that tests run with, or say what is missing.

    python tests/peers/build.py

A second S3 server, versitygw, is built from its Go module (some minutes at the first time, nothing
afterwards); unlike moto it checks signatures. Azure's own emulator, Azurite, is installed by npm.
Both in the versions below, into .peers/. Clients of franz-go and of Java are built beside them
(`peers.line_clients`). Exit status 0 also where there is no Go or npm: the tests
that need them are skipped then, and say so.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.line_clients import line_programs

MODULE = "github.com/versity/versitygw/cmd/versitygw"
VERSION = "v1.8.0"
FOLDER = Path(__file__).resolve().parents[2] / ".peers"
BINARY = FOLDER / f"versitygw-{VERSION}"
AZURITE_PACKAGE = "azurite@3.35.0"
AZURITE = FOLDER / "node_modules" / ".bin" / "azurite-blob"
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


def install_azurite() -> str:
    """Install it unless it is there. Returns: what is missing, or ""."""
    if AZURITE.exists():
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm on the PATH, which installs Azurite"
    FOLDER.mkdir(exist_ok=True)
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--prefix", str(FOLDER), AZURITE_PACKAGE],
        timeout=SECONDS_MAX,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if not done.returncode else f"no Azurite: {done.stderr.strip()[-500:]}"


if __name__ == "__main__":
    print(build() or f"second S3 server: {BINARY}")
    print(install_azurite() or f"Azure's emulator: {AZURITE}")
    programs, missing = line_programs(java=True)
    for program in programs:
        print(f"client of {program.library}: {program.command[0]}")
    for sentence in missing:
        print(sentence)
    sys.exit(0)
