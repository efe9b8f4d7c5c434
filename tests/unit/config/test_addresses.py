"""HOST:PORT, and Kafka's ADDRESS:COUNT."""

import pytest

from penstock.config.addresses import parse_counts
from penstock.model.errors import InvalidRequestError


def test_counts_are_by_address_as_a_socket_names_it() -> None:
    text = "10.0.0.7:500, [FD00:0::7]:20,::1:0"
    assert parse_counts(text, setting="s") == {"10.0.0.7": 500, "fd00::7": 20, "::1": 0}
    assert parse_counts(" ", setting="s") == {}


@pytest.mark.parametrize(
    "text", ["host:5", "10.0.0.7", "10.0.0.7:x", "10.0.0.7:-1", ",", "10.0.0.7:"]
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="max_connections_per_ip_overrides"):
        parse_counts(text, setting="max_connections_per_ip_overrides")
