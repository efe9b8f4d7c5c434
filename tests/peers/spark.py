"""Environments with other releases of Spark, beside the one that tests run in.

    python tests/peers/spark.py          makes them, some minutes at the first time

Each is an environment of its own in .peers/ that holds its pyspark, pinned by hash, and finds all
else in the environment of the tests. Exit status 0 also where the package can't be got: the tests
that need it are skipped then, and say so.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / ".peers"
RELEASES = ("4.1", "4.2")
"""4.1 is the last with Iceberg's own runtime, 4.2 with Spark's own Kafka source."""
CONNECT = "connect"
SECONDS_MAX = 1800


def lock_of(name: str) -> Path:
    """What an environment holds itself."""
    return REPOSITORY / "requirements" / f"spark-{name}.txt"


def python_of(name: str) -> Path:
    """The environment's interpreter; it is there once the environment is whole."""
    return FOLDER / f"spark-{name}" / "bin" / "python"


def is_built(name: str) -> bool:
    """Whether it holds what its lock says."""
    stamp = FOLDER / f"spark-{name}" / ".lock"
    return stamp.is_file() and stamp.read_bytes() == lock_of(name).read_bytes()


def build(name: str) -> str:
    """Make it unless it is there. Returns: what is missing, or ""."""
    if is_built(name):
        return ""
    folder = FOLDER / f"spark-{name}"
    FOLDER.mkdir(exist_ok=True)
    print(f"making {folder}", flush=True)
    venv = [sys.executable, "-m", "venv", "--clear", str(folder)]
    made = subprocess.run(venv, capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no environment: {made.stderr.strip()[-500:]}"
    python = str(python_of(name))
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    # Behind its own packages: pyspark alone is another one.
    links = [sysconfig.get_path("purelib"), str(REPOSITORY / "src")]
    (Path(own.stdout.strip()) / "tests.pth").write_text("\n".join(links) + "\n")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--no-build-isolation", "--no-deps", "--require-hashes", "--ignore-installed"]
    try:
        done = subprocess.run(
            [*install, "-r", str(lock_of(name))],
            timeout=SECONDS_MAX,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not installed within {SECONDS_MAX} s"
    if done.returncode:
        return f"not installed: {done.stderr.strip()[-500:]}"
    (folder / ".lock").write_bytes(lock_of(name).read_bytes())
    return ""


if __name__ == "__main__":
    for environment in (*RELEASES, CONNECT):
        print(build(environment) or f"Spark {environment}: {python_of(environment)}")
    sys.exit(0)
