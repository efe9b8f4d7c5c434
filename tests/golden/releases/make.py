"""Keep the package of a commit as a release that tests run beside the present one.

    python tests/golden/releases/make.py LEVEL COMMIT

writes level-LEVEL.tar.xz: the newest feature level that the release knows names it. The pipeline's
package is left out, since no server imports it. A release that was shipped is never made again.
"""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
LEFT_OUT = "penstock/pipeline/"


def make(level: int, commit: str) -> Path:
    """Write it; equal input gives equal bytes."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", f"{commit}:src", "penstock"],
        cwd=HERE.parents[2],
        check=True,
        capture_output=True,
    ).stdout
    target = HERE / f"level-{level}.tar.xz"
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        tarfile.open(target, "w:xz", preset=9) as kept,
    ):
        for member in source.getmembers():
            if member.isfile() and not member.name.startswith(LEFT_OUT):
                plain = tarfile.TarInfo(member.name)
                plain.size = member.size
                kept.addfile(plain, source.extractfile(member))
    return target


if __name__ == "__main__":
    print(make(int(sys.argv[1]), sys.argv[2]))
