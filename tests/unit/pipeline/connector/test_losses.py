"""What a read that finds records gone tells its user."""

import pickle

import pytest

from penstock.pipeline.connector.losses import Losses
from penstock.pipeline.ranges import LogTruncatedError


def test_a_loss_names_what_is_gone_and_how_to_go_on() -> None:
    with pytest.raises(LogTruncatedError) as raised:
        Losses(allowed=False).truncated("flights", 3, wanted=10, available=25)
    # As it comes back from an executor.
    told = str(pickle.loads(pickle.dumps(raised.value)))
    assert "partition 3 of topic flights: offset 10 is wanted, the log begins at 25" in told
    assert "failOnDataLoss=false" in told


def test_allowed_losses_are_counted_by_topic() -> None:
    losses = Losses(allowed=True)
    losses.truncated("flights", 3, wanted=10, available=25)
    losses.truncated("flights", 4, wanted=0, available=1)
    losses.deleted("gone")
    assert losses.records == {"flights": 16}
