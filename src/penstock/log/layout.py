"""Say where things lie in a data directory."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DataLayout:
    """Paths under one data directory. The WAL's own folder is the WAL's to name."""

    root: Path

    @classmethod
    def of(cls, data: str) -> "DataLayout":
        """The layout of the directory that the setting `data` names."""
        return cls(Path(data).absolute())

    @property
    def metadata(self) -> Path:
        """The SQLite file that holds journal and state."""
        return self.root / "metadata.sqlite"

    @property
    def replica(self) -> Path:
        """The SQLite file of a cluster's agent: state alone, the journal is elsewhere."""
        return self.root / "replica.sqlite"

    @property
    def objects(self) -> Path:
        """The local object store."""
        return self.root / "objects"

    def worker(self, index: int) -> Path:
        """The directory of worker `index`, of several on this host; worker 0 has the root."""
        return self.root / "workers" / str(index)

    def workers(self) -> list[Path]:
        """The directories of all workers that there have been, but worker 0."""
        return sorted((self.root / "workers").glob("[0-9]*"))

    @property
    def scratch(self) -> Path:
        """Files on their way to somewhere else; nothing in it outlives a process."""
        return self.root / "scratch"
