"""A server of any shape reports its own WAL in /v1/status and in metrics."""

from dataclasses import dataclass

from penstock.log.upload.uploader import Uploader


@dataclass(frozen=True, slots=True, kw_only=True)
class WalReport:
    """The sizes of one WAL at this moment."""

    uploader: Uploader
    free_bytes: int
    bytes_max: int
    """The setting `wal_bytes_max`."""

    def status(self) -> dict[str, object]:
        """A JSON object; sizes in bytes."""
        return {
            "drained": self.uploader.pending_bytes == 0,
            "pending_bytes": self.uploader.pending_bytes,
            "damaged_bytes": self.uploader.damaged_bytes,
            "free_bytes": self.free_bytes,
            "bytes_max": self.bytes_max,
            "upload_error": self.uploader.last_error or None,
        }

    def gauges(self) -> dict[str, float]:
        """Return the values of the WAL's gauges by name."""
        return {
            "penstock_wal_pending_bytes": self.uploader.pending_bytes,
            "penstock_wal_free_bytes": self.free_bytes,
            "penstock_wal_bytes_max": self.bytes_max,
            "penstock_segments_stored_total": self.uploader.segment_count,
        }


def of_agent(uploader: Uploader | None, free_bytes: int, bytes_max: int) -> WalReport | None:
    """Return the report of an agent that begins a WAL when a topic needs one; None: no WAL yet."""
    if uploader is None:
        return None
    return WalReport(uploader=uploader, free_bytes=free_bytes, bytes_max=bytes_max)
