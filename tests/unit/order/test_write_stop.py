"""While a cluster's states differ, nothing of a client is ordered, in whatever company it comes."""

from penstock.model.errors import RetryableError
from penstock.state.commands import CreateTopic, Heartbeat, Noop
from penstock.state.log_protocol import LOG_PROTOCOL
from penstock.state.order_types import WriteStop

TOPIC = CreateTopic(name="t", topic_id=b"t" * 16, partitions=1)


def test_each_command_of_an_entry_counts() -> None:
    stop = WriteStop(LOG_PROTOCOL.is_never_stopped)
    assert stop.refusal([TOPIC]) is None
    error = stop.error = RetryableError("commit", "agent 1", "the states differ")
    assert stop.refusal([Heartbeat(), Noop()]) is None
    for commands in ([TOPIC], [Heartbeat(), TOPIC], [TOPIC, Heartbeat()]):
        assert stop.refusal(commands) is error
