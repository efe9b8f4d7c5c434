"""While a cluster's states differ, nothing of a client is ordered, in whatever company it comes."""

from penstock.model.errors import RetryableError
from penstock.order.write_stop import WriteStop
from penstock.state.commands import CreateTopic, Heartbeat, Noop

TOPIC = CreateTopic(name="t", topic_id=b"t" * 16, partitions=1)


def test_each_command_of_an_entry_counts() -> None:
    stop = WriteStop()
    assert stop.refusal([TOPIC]) is None
    error = stop.error = RetryableError("commit", "agent 1", "the states differ")
    assert stop.refusal([Heartbeat(), Noop()]) is None
    for commands in ([TOPIC], [Heartbeat(), TOPIC], [TOPIC, Heartbeat()]):
        assert stop.refusal(commands) is error
