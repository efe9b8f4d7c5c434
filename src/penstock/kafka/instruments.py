"""The Kafka face reports to instruments. A server's instruments feed Prometheus."""

from typing import Protocol


class Instruments(Protocol):
    """Takes measurements. Called on the event loop for every request, so it must be cheap."""

    def observe(self, stage: str, seconds: float) -> None:
        """One duration of a stage: "request:<Api>" from its last byte received until its reply
        is handed to the transport; "parse:<Api>" for the raw APIs' own decoding."""
        ...

    def count(self, event: str, amount: int = 1) -> None:
        """Something happened: "connections_opened", "connections_closed", "malformed_requests",
        "refused_batches", "handed_over_batches", "late_transaction_requests", "limited_topics",
        "authentications", "failed_authentications", "failed_tls_handshakes",
        "reply_bytes", "refused:<setting>" (see `Admission.refusal`; "tls_handshakes",
        "draining"), "ended:<Ending>", "waited:<Lane>", "throttled:<key of quotas>" or
        "unserved:<Unserved>"."""
        ...


class NoInstruments:
    """Measures nothing."""

    def observe(self, stage: str, seconds: float) -> None:
        """Forget it."""

    def count(self, event: str, amount: int = 1) -> None:
        """Forget it."""
