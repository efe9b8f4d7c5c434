"""Make the golden backup of this backup version: `python tests/golden/backups/make.py`.

Once per version of docs/formats/backup.md, by the code that introduces the version; what was made
then is never made again, since every later release must restore exactly that. `version-N.json` says
what must be read from the directory that is restored of `version-N.tar.gz`.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from penstock.recovery.manifest import BACKUP_VERSION  # noqa: E402
from support.backups import copy_to, fill, folder_store  # noqa: E402
from support.log_contents import contents  # noqa: E402
from support.log_rig import run_rig  # noqa: E402

HERE = Path(__file__).parent


def as_json(value: Any) -> Any:
    """The value as JSON has it: bytes in base64, keys as strings."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return value


def main() -> None:
    """Write the two files."""
    archive = HERE / f"version-{BACKUP_VERSION}.tar.gz"
    if archive.exists():
        sys.exit(f"{archive.name} is there already, and must not change")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        run_rig(source, fill)
        copy_to(source, folder_store(Path(folder)))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            tar.add(Path(folder) / "backup", "backup", filter=_anonymous)
        archive.write_bytes(packed.getvalue())
        text = json.dumps(as_json(contents(source)), indent=1, sort_keys=True)
        archive.with_name(f"version-{BACKUP_VERSION}.json").write_text(text + "\n")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
