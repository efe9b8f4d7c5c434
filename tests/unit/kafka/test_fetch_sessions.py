"""Fetch sessions: what is remembered, what is told, what is refused (KIP-227)."""

from penstock.kafka.fetch_sessions import (
    INVALID_SESSION_EPOCH,
    SESSION_ID_NOT_FOUND,
    SESSION_TOPIC_ID_ERROR,
    FetchSession,
    FetchSessions,
)
from penstock.kafka.wire.fetch_codec import FetchPartition, FetchRequest, PartitionData


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
    session = sessions.begin(request(0, 0, *partitions), 5, uses_ids=False, now_s=0)
    assert session is not None
    return session


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
    session = sessions.resume(request(5, 1, 2, forgotten=(0,)), uses_ids=False, now_s=1)
    assert isinstance(session, FetchSession)
    assert [w.partition for w in session.wanted()] == [1, 2]
    again = sessions.resume(request(5, 2), uses_ids=False, now_s=1)
    assert again is session


def test_wrong_epochs_ids_and_kinds_are_refused() -> None:
    sessions = FetchSessions()
    begun(sessions, 0)
    assert sessions.resume(request(6, 1), uses_ids=False, now_s=1) == SESSION_ID_NOT_FOUND
    assert sessions.resume(request(5, 2), uses_ids=False, now_s=1) == INVALID_SESSION_EPOCH
    assert sessions.resume(request(5, 1), uses_ids=True, now_s=1) == SESSION_TOPIC_ID_ERROR
    sessions.end(5)
    assert sessions.resume(request(5, 1), uses_ids=False, now_s=1) == SESSION_ID_NOT_FOUND


def full(sessions: FetchSessions, number: int, now_s: float) -> FetchSession | None:
    return sessions.begin(request(0, 0, 0), number, uses_ids=False, now_s=now_s)


def test_sessions_in_use_are_never_evicted_and_more_clients_have_none() -> None:
    sessions = FetchSessions(sessions_max=2)
    assert full(sessions, 1, 0) is not None
    assert full(sessions, 2, 0) is not None
    for epoch in range(1, 30):
        now_s = 10.0 * epoch
        for number in (1, 2):
            found = sessions.resume(request(number, epoch), uses_ids=False, now_s=now_s)
            assert isinstance(found, FetchSession)
        assert full(sessions, 3, now_s) is None
    assert len(sessions) == 2


def test_a_session_that_was_not_used_for_two_minutes_gives_way() -> None:
    sessions = FetchSessions(sessions_max=2)
    for number in (1, 2):
        full(sessions, number, 0)
    assert isinstance(sessions.resume(request(1, 1), uses_ids=False, now_s=100), FetchSession)
    assert full(sessions, 3, 119.9) is None
    assert full(sessions, 3, 120) is not None
    assert (1 in sessions, 2 in sessions, 3 in sessions) == (True, False, True)
    assert full(sessions, 4, 121) is None


def test_a_client_that_begins_anew_takes_the_place_of_its_own_session() -> None:
    sessions = FetchSessions(sessions_max=1)
    full(sessions, 1, 0)
    again = sessions.begin(request(1, 0, 0), 2, uses_ids=False, now_s=1)
    assert again is not None
    assert (1 in sessions, 2 in sessions) == (False, True)


def test_a_session_names_a_bounded_number_of_partitions() -> None:
    sessions = FetchSessions(partitions_max=3)
    assert sessions.begin(request(0, 0, 0, 1, 2, 3), 5, uses_ids=False, now_s=0) is None
    session = begun(sessions, 0, 1, 2)
    same = sessions.resume(request(5, 1, 3, forgotten=(0,)), uses_ids=False, now_s=1)
    assert same is session
    grown = sessions.resume(request(5, 2, 4), uses_ids=False, now_s=2)
    assert grown == SESSION_ID_NOT_FOUND
    assert len(sessions) == 0


def test_all_sessions_together_name_a_bounded_number_of_partitions() -> None:
    sessions = FetchSessions(partitions_total_max=5)

    def begin(number: int, now_s: float, *partitions: int) -> FetchSession | None:
        return sessions.begin(request(0, 0, *partitions), number, uses_ids=False, now_s=now_s)

    assert begin(1, 0, 0, 1) is not None
    assert begin(2, 0, 0, 1, 1) is not None
    assert sessions.partition_count == 4
    assert begin(3, 1, 0, 1) is None
    assert sessions.resume(request(1, 1, 2, 3), uses_ids=False, now_s=2) == SESSION_ID_NOT_FOUND
    assert sessions.partition_count == 2
    assert begin(3, 3, 0, 1, 2) is not None
    assert isinstance(
        sessions.resume(request(3, 1, forgotten=(0,)), uses_ids=False, now_s=4), FetchSession
    )
    assert sessions.partition_count == 4
    assert begin(4, 120, 0, 1, 2) is not None
    assert (2 in sessions, 3 in sessions) == (False, True)
    assert begin(5, 300, *range(5)) is not None
    assert (len(sessions), sessions.partition_count) == (1, 5)
    sessions.end(5)
    assert sessions.partition_count == 0
