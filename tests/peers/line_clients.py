"""Kafka clients of other languages, led by `support.line_client`; or a sentence why there is none.

franz-go is built from `tests/peers/franz` into .peers/, some seconds at the first time and nothing
afterwards; the binary's name tells which sources it was made of.
"""

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from support.line_client import LineProgram

SOURCES = Path(__file__).resolve().parent / "franz"
FOLDER = Path(__file__).resolve().parents[2] / ".peers"
SECONDS_MAX = 600


@cache
def franz_go() -> LineProgram | str:
    """The program, built unless it is there; or what is missing, as a sentence."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    binary = FOLDER / f"franz-{digest.hexdigest()[:12]}"
    if not binary.is_file():
        missing = _build(binary)
        if missing:
            return missing
    return LineProgram(library="franz-go", command=(str(binary),))


def _build(binary: Path) -> str:
    go = shutil.which("go")
    if go is None:
        return "there is no go on the PATH, which builds the franz-go client"
    FOLDER.mkdir(exist_ok=True)
    print(f"building {binary.name} of franz-go, which takes a minute", flush=True)
    # Under its name only once it is whole: two runs may build at a time.
    making = binary.with_suffix(f".{os.getpid()}")
    try:
        done = subprocess.run(
            [go, "build", "-trimpath", "-buildvcs=false", "-o", str(making), "."],
            cwd=SOURCES,
            timeout=SECONDS_MAX,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the franz-go client was not built within {SECONDS_MAX} s"
    if done.returncode:
        return f"the franz-go client could not be built: {done.stderr.strip()[-500:]}"
    making.rename(binary)
    return ""


def line_programs() -> tuple[list[LineProgram], list[str]]:
    """The clients that are there, and a sentence for each that isn't."""
    found = [franz_go()]
    programs = [one for one in found if isinstance(one, LineProgram)]
    return programs, [one for one in found if isinstance(one, str)]
