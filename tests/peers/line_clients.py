"""Kafka clients of other languages, led by `support.line_client`; or a sentence why there is none.

franz-go is built from `tests/peers/franz`, the Java client from `tests/peers/kafka_java`; both into
.peers/, a minute each at the first time and nothing afterwards, under names that tell which sources
they were made of.
"""

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from support.line_client import LineProgram

HERE = Path(__file__).resolve().parent
FOLDER = Path(__file__).resolve().parents[2] / ".peers"
SECONDS_MAX = 600


@cache
def franz_go() -> LineProgram | str:
    """The program, built unless it is there; or what is missing, as a sentence."""
    sources = HERE / "franz"
    binary = FOLDER / f"franz-{_digest(sources)}"
    if not binary.is_file():
        go = shutil.which("go")
        if go is None:
            return "there is no go on the PATH, which builds the franz-go client"
        # Under its name only once it is whole: two runs may build at a time.
        making = binary.with_suffix(f".{os.getpid()}")
        build = [go, "build", "-trimpath", "-buildvcs=false", "-o", str(making), "."]
        missing = _run("the franz-go client", build, cwd=sources)
        if missing:
            return missing
        making.rename(binary)
    return LineProgram(library="franz-go", command=(str(binary),))


@cache
def kafka_java() -> LineProgram | str:
    """The Java client's, likewise. It takes a JVM of some 100 MB for each client."""
    sources = HERE / "kafka_java"
    folder = FOLDER / f"kafka-java-{_digest(sources)}"
    if not folder.is_dir():
        tools = [shutil.which(name) for name in ("mvn", "javac", "java")]
        if not all(tools):
            return "there are no mvn and JDK on the PATH, which build the Java client"
        making = folder.with_suffix(f".{os.getpid()}")
        copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={making}"]
        programs = sorted(path.name for path in sources.glob("*.java"))
        compile_it = ["javac", "-cp", f"{making}/*", "-d", str(making), *programs]
        for command in (copy, compile_it):
            missing = _run("the Java client", command, cwd=sources)
            if missing:
                shutil.rmtree(making, ignore_errors=True)
                return missing
        making.rename(folder)
    options = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    classes = f"{folder}{os.pathsep}{folder}/*"
    return LineProgram(library="java", command=("java", *options, "-cp", classes, "LineClient"))


def line_programs(*, java: bool) -> tuple[list[LineProgram], list[str]]:
    """The clients that are there, and a sentence for each that isn't.

    Args:
        java: with the Java client, which is heavy.
    """
    found = [franz_go(), *([kafka_java()] if java else [])]
    programs = [one for one in found if isinstance(one, LineProgram)]
    return programs, [one for one in found if isinstance(one, str)]


def _digest(sources: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(sources.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _run(what: str, command: list[str], *, cwd: Path) -> str:
    """Returns: why it failed, or ""."""
    FOLDER.mkdir(exist_ok=True)
    print(f"building {what}: {Path(command[0]).name}", flush=True)
    try:
        done = subprocess.run(
            command, cwd=cwd, timeout=SECONDS_MAX, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{what} was not built within {SECONDS_MAX} s"
    if done.returncode:
        return f"{what} could not be built: {(done.stderr or done.stdout).strip()[-500:]}"
    return ""
