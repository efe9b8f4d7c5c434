"""Make an empty virtual environment, or say in one sentence why not. Runs on any Python 3."""

import subprocess
import sys

OLDEST, NEWEST = (3, 11), (3, 14)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_venv.py DIRECTORY")
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        sys.exit(
            "Penstock needs Python 3.11 to 3.14, and {} is {}.{}: choose one with "
            "`make PYTHON=python3.12 ...`.".format(sys.executable, *sys.version_info[:2])
        )
    try:
        import ensurepip  # noqa: F401 - Debian ships venv without it, which fails late and long
        import venv  # noqa: F401
    except ImportError:
        sys.exit(
            "Python's venv module is missing: install it (on Debian and Ubuntu the package "
            "python{}.{}-venv) or choose another Python with `make PYTHON=...`.".format(
                *sys.version_info[:2]
            )
        )
    sys.exit(subprocess.call([sys.executable, "-m", "venv", "--clear", sys.argv[1]]))


if __name__ == "__main__":
    main()
