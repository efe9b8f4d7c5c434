"""Fetch sessions: what is remembered, what is told, what is refused (KIP-227)."""

from penstock.kafka.fetch_codec import FetchPartition, FetchRequest, PartitionData
from penstock.kafka.fetch_session import (
    INVALID_SESSION_EPOCH,
    SESSION_ID_NOT_FOUND,
    SESSION_TOPIC_ID_ERROR,
    FetchSession,
    FetchSessions,
)


def request(
    session_id: int, epoch: int, *partitions: int, forgotten: tuple[int, ...] = ()
) -> FetchRequest:
    return FetchRequest(
        500,
        1,
        1 << 20,
        0,
        session_id,
        epoch,
        [FetchPartition("t", p, 0, 1 << 20, -1) for p in partitions],
        [("t", p) for p in forgotten],
        "",
        [],
    )


def data(partition: int, end: int, length: int = 0, error: int = 0) -> PartitionData:
    return PartitionData("t", partition, error, end, end, 0, [], length)


def begun(sessions: FetchSessions, *partitions: int) -> FetchSession:
    return sessions.begin(request(0, 0, *partitions), 5, uses_ids=False)


def test_only_news_are_told_and_served_partitions_go_last() -> None:
    sessions = FetchSessions()
    session = begun(sessions, 0, 1, 2)
    session.sent([data(0, 10), data(1, 20, length=100), data(2, 30)])
    assert [w.partition for w in session.wanted()] == [0, 2, 1]
    assert session.news([data(0, 10), data(1, 20), data(2, 31)]) == [data(2, 31)]
    assert session.news([data(0, 10, error=6)]) == [data(0, 10, error=6)]


def test_recovery_from_an_error_is_news() -> None:
    session = begun(FetchSessions(), 0)
    session.sent([data(0, 10, error=6)])
    assert session.news([data(0, 10)]) == [data(0, 10)]


def test_an_incremental_request_changes_the_session() -> None:
    sessions = FetchSessions()
    begun(sessions, 0, 1)
    session = sessions.resume(request(5, 1, 2, forgotten=(0,)), uses_ids=False)
    assert isinstance(session, FetchSession)
    assert [w.partition for w in session.wanted()] == [1, 2]
    again = sessions.resume(request(5, 2), uses_ids=False)
    assert again is session


def test_wrong_epochs_ids_and_kinds_are_refused() -> None:
    sessions = FetchSessions()
    begun(sessions, 0)
    assert sessions.resume(request(6, 1), uses_ids=False) == SESSION_ID_NOT_FOUND
    assert sessions.resume(request(5, 2), uses_ids=False) == INVALID_SESSION_EPOCH
    assert sessions.resume(request(5, 1), uses_ids=True) == SESSION_TOPIC_ID_ERROR
    sessions.end(5)
    assert sessions.resume(request(5, 1), uses_ids=False) == SESSION_ID_NOT_FOUND


def test_the_least_recently_used_session_is_evicted() -> None:
    sessions = FetchSessions(sessions_max=2)
    for number in (1, 2):
        sessions.begin(request(0, 0, 0), number, uses_ids=False)
    sessions.resume(request(1, 1), uses_ids=False)
    sessions.begin(request(0, 0, 0), 3, uses_ids=False)
    assert (1 in sessions, 2 in sessions, 3 in sessions) == (True, False, True)
