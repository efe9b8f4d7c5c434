"""`penstock produce`: what is read is sent soon, once, and not lost when the command is ended."""

from __future__ import annotations

import contextlib
import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, Message

from penstock.cli.client import producing
from penstock.cli.client.cluster import Client
from penstock.cli.client.producing import NewRecord, Producer
from penstock.cli.main import root
from penstock.config.addresses import parse_address
from penstock.model.errors import InvalidRequestError, RetryableError
from support.commands import SECONDS_MAX, ends, running_command
from support.server import ServerProcess, running_server
from support.waiting import eventually


def run(broker: ServerProcess, *arguments: str, given: Any = None) -> Result:
    return CliRunner().invoke(
        root, arguments, input=given, env={"PENSTOCK_SERVER": broker.bootstrap}
    )


def consumed(broker: ServerProcess, topic: str) -> list[str]:
    result = run(broker, "consume", topic, "--from-beginning", "--until-end")
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("files", [(), ("-",)])
def test_lines_of_an_open_pipe_are_sent_without_waiting_for_more(
    broker: ServerProcess, topic: str, files: tuple[str, ...]
) -> None:
    with running_command("produce", topic, *files, "--server", broker.bootstrap) as command:
        command.write(b"one\ntwo\n")
        eventually(lambda: ends(broker.bootstrap, topic), lambda found: found == {0: 2})
        command.write(b"three\nfour\nno line y")
        eventually(lambda: ends(broker.bootstrap, topic), lambda found: found == {0: 4})
        status, output, errors = command.interrupted()
    assert (status, output, errors.strip()) == (130, b"", "4 records")
    assert consumed(broker, topic) == ["one", "two", "three", "four"]


class Input(io.RawIOBase):
    """Standard input that gives lines, and then Ctrl-C."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._data:
            raise KeyboardInterrupt
        count = min(len(buffer), len(self._data))
        buffer[:count], self._data = self._data[:count], self._data[count:]
        return count


def test_what_was_read_before_an_interrupt_is_sent(broker: ServerProcess, topic: str) -> None:
    done = run(broker, "produce", topic, given=io.BufferedReader(Input(b"one\ntwo\n")))
    assert done.stderr.startswith("2 records\n")
    assert consumed(broker, topic) == ["one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ('{"timestamp": 1e999}', "standard input line 2"),
        ('{"value": "two", "partition": 1}', "has 1 partitions"),
    ],
    ids=["no record", "no such partition"],
)
def test_what_was_read_before_a_line_that_is_refused_is_sent(
    broker: ServerProcess, topic: str, refused: str, told: str
) -> None:
    lines = f'{{"value": "one"}}\n{refused}\n{{"value": "three"}}\n'
    done = run(broker, "produce", topic, "--format", "json", given=lines)
    assert isinstance(done.exception, InvalidRequestError)
    assert told in str(done.exception)
    assert consumed(broker, topic) == ["one"]


def test_lines_are_split_alike_in_a_file_and_in_a_pipe(
    broker: ServerProcess, topic: str, tmp_path: Any
) -> None:
    text = "a\r\n\n" + "long" * 100_000 + "\n" + "b\n" * 3 + "the end"
    file = tmp_path / "lines"
    file.write_text(text, newline="")
    assert run(broker, "produce", topic, str(file), given=None).exit_code == 0
    assert run(broker, "produce", topic, "-", given=text).exit_code == 0
    lines = consumed(broker, topic)
    assert lines == ["a", "", "long" * 100_000, "b", "b", "b", "the end"] * 2


def test_records_that_fit_alone_are_not_put_into_a_batch_that_does_not(
    broker: ServerProcess, topic: str
) -> None:
    sizes = [200 << 10, 900 << 10, 100, 1000 << 10, 255 << 10, 2 << 10, 7]
    text = "".join("x" * size + "\n" for size in sizes)
    done = run(broker, "produce", topic, given=text)
    assert done.exit_code == 0, done.exception
    assert [len(line) for line in consumed(broker, topic)] == sizes


@pytest.fixture
def client(broker: ServerProcess) -> Iterator[Client]:
    address = parse_address(broker.bootstrap, setting="bootstrap")
    with Client(address, timeout_s=SECONDS_MAX) as client:
        yield client


def producer_of(client: Client, topic: str, *, deadline_s: float = 60) -> Producer:
    return Producer(client, topic, codec="none", batch_bytes=1 << 20, deadline_s=deadline_s)


class Interrupted(Producer):
    """One whose first waits are ended by somebody who presses Ctrl-C."""

    interrupts = 2

    def _poll(self, wait_s: float) -> None:
        super()._poll(wait_s)
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt


@contextlib.contextmanager
def stopped(broker: ServerProcess) -> Iterator[None]:
    """A server that answers nothing for a while."""
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_records_whose_sending_was_interrupted_are_stored_once(
    broker: ServerProcess, topic: str, client: Client
) -> None:
    producer = Interrupted(client, topic, codec="none", batch_bytes=1 << 20, deadline_s=60)
    with stopped(broker):
        producer.add_values([b"0", b"1"], headers=[], partition=None)
        producer.add(NewRecord(key=None, value=b"2"))
        for _ in range(Interrupted.interrupts):
            with pytest.raises(KeyboardInterrupt):
                producer.flush()
            assert (producer.sent_count, producer.unsent_count) == (0, 3)
    producer.flush()
    producer.add(NewRecord(key=None, value=b"3"))
    producer.flush()
    assert (producer.sent_count, producer.unsent_count) == (4, 0)
    assert consumed(broker, topic) == ["0", "1", "2", "3"]
    assert json.loads(run(broker, "topic", "describe", topic, "--json").stdout)


@pytest.mark.slow
def test_after_a_record_that_is_too_large_nothing_is_sent(
    broker: ServerProcess, topic: str, client: Client
) -> None:
    producer = producer_of(client, topic)
    producer.add_values([b"one"], headers=[], partition=None)
    producer.flush()
    producer.add_values([b"x" * (5 << 20)], headers=[], partition=None)
    with pytest.raises(InvalidRequestError, match="give a smaller --batch-bytes"):
        producer.flush()
    with pytest.raises(InvalidRequestError, match="give a smaller --batch-bytes"):
        producer.add_values([b"two"], headers=[], partition=None)
    assert producer.sent_count == 1
    producer.close()
    assert consumed(broker, topic) == ["one"]


@pytest.mark.parametrize("many", [True, False])
def test_a_failure_that_the_next_record_meets_is_told_with_its_cause(
    topic: str, client: Client, many: bool
) -> None:
    producer = producer_of(client, topic)
    producer.add_values([b"x" * (5 << 20)], headers=[], partition=None)
    # librdkafka takes none after a failure, and says of that no more than that it was fatal.
    with pytest.raises(InvalidRequestError, match="MESSAGE_TOO_LARGE"):
        while True:
            if many:
                producer.add_values([b"two"], headers=[], partition=None)
            else:
                producer.add(NewRecord(key=None, value=b"two"))
    producer.close()


def test_what_was_given_up_for_a_failure_is_not_taken_for_it(topic: str, client: Client) -> None:
    """librdkafka purges what is queued after a fatal error, and may report that first."""
    record = Message(topic, partition=0)
    producer = producer_of(client, topic)
    producer._on_failed(KafkaError(KafkaError._PURGE_QUEUE), record)
    producer._on_failed(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), record)
    producer._on_failed(KafkaError(KafkaError._PURGE_QUEUE), record)
    with pytest.raises(InvalidRequestError, match="MESSAGE_TOO_LARGE"):
        producer.serve()
    producer.close()


@pytest.mark.slow
def test_a_server_that_is_away_for_too_long_is_named_with_the_reason(tmp_path: Path) -> None:
    with running_server(tmp_path, {}) as broker:
        address = parse_address(broker.bootstrap, setting="bootstrap")
        with Client(address, timeout_s=SECONDS_MAX) as client:
            producer = producer_of(client, "t", deadline_s=1)
            broker.kill()
            producer.add(NewRecord(key=b"k", value=b"v"))
            with pytest.raises(RetryableError) as raised:
                producer.flush()
    assert str(raised.value).startswith("produce t")
    assert str(raised.value).endswith(f": {broker.bootstrap}: Connection refused; tried for 1 s")


@pytest.mark.slow
def test_what_the_buffer_has_no_room_for_waits(
    broker: ServerProcess, topic: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "BUFFER_COUNT", 10)
    producer = producer_of(client, topic)
    values = [b"%d" % number for number in range(100)]
    producer.add_values(values[:60], headers=[], partition=None)
    for value in values[60:]:
        producer.add(NewRecord(key=None, value=value))
    producer.flush()
    assert (producer.sent_count, producer.unsent_count) == (100, 0)
    assert [line.encode() for line in consumed(broker, topic)] == values
