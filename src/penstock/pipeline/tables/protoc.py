"""Texts of .proto files as descriptors, by the compiler in the package grpcio-tools.

docs/decisions/0007 says why that one. It runs as a process of its own: in this one it would print
its errors past Python.
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from penstock.model.errors import InvalidRequestError

_COMPILER: Final = "grpc_tools"
_TIMEOUT_S: Final = 60.0
_OPERATION: Final = "compile schema"


def compile_proto_file(path: Path, folders: Sequence[Path] = ()) -> FileDescriptorSet:
    """A file with all that it imports, what is imported first.

    Args:
        folders: where its imports are looked for; without any, in its own folder.

    Raises:
        InvalidRequestError: it is in none of the folders, it does not compile, or there is no
            compiler.
    """
    folders = [folder.resolve() for folder in folders] or [path.resolve().parent]
    if not any(path.resolve().is_relative_to(folder) for folder in folders):
        raise InvalidRequestError(
            _OPERATION,
            str(path),
            f"it is in none of {', '.join(map(str, folders))}",
            "the folders of imports hold the file itself, too",
        )
    return _compile(folders, path.resolve(), subject=str(path))


def compile_proto_texts(
    name: str, text: str, imports: Mapping[str, str], *, subject: str
) -> FileDescriptorSet:
    """Compile a text with all that it imports; imported files come first.

    Args:
        name: the name of the text's file.
        imports: texts by the names by which they are imported; Google's own are known.

    Raises:
        InvalidRequestError: see `compile_proto_file`; or a name is not a path below a folder, or is
            the name of another file.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-proto-") as folder:
        for file_name, body in [*imports.items(), (name, text)]:
            pure = PurePosixPath(file_name)
            # Names come from a registry: none may lead out of the folder.
            if pure.is_absolute() or ".." in pure.parts or "\\" in file_name or "\0" in file_name:
                raise InvalidRequestError(_OPERATION, subject, f"an import named {file_name!r}")
            path = Path(folder, *pure.parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Made again: no import may take another's place, nor the text's own.
                with path.open("x", encoding="utf-8") as file:
                    file.write(body)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise InvalidRequestError(
                    _OPERATION, subject, f"a file named {file_name[:100]!r}: {reason}"
                ) from error
        return _compile([Path(folder)], Path(folder, name), subject=subject)


def _compile(folders: Sequence[Path], source: Path, *, subject: str) -> FileDescriptorSet:
    if importlib.util.find_spec(_COMPILER) is None:
        raise InvalidRequestError(
            _OPERATION,
            subject,
            "there is no compiler of .proto texts",
            "pip install grpcio-tools; or give a descriptor set",
        )
    with tempfile.TemporaryDirectory(prefix="penstock-protoc-") as folder:
        output = Path(folder, "schema.desc")
        try:
            done = subprocess.run(  # noqa: S603 - no shell, and our own interpreter
                [
                    sys.executable,
                    "-P",  # A grpc_tools in the folder where a person stands is none.
                    "-m",
                    f"{_COMPILER}.protoc",
                    *(f"--proto_path={place}" for place in folders),
                    "--include_imports",
                    f"--descriptor_set_out={output}",
                    str(source),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidRequestError(_OPERATION, subject, str(error)) from error
        if done.returncode:
            raise InvalidRequestError(
                _OPERATION, subject, done.stderr.strip()[-1000:] or f"exit code {done.returncode}"
            )
        return FileDescriptorSet.FromString(output.read_bytes())
