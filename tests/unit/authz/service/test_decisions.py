"""The log of decisions: what a line has, what is left out, and that no answer waits for it."""

import json
import threading

import pytest

from penstock.authz.service import decisions as module
from penstock.authz.service.call import Answer, Call
from penstock.authz.service.decisions import DecisionLog, DecisionSettings
from penstock.authz.service.service import TEST_KEY, Service
from penstock.system.clock import SystemClock
from support.simulated.randomness import SeededRandom

ASKED = {
    "actor_type": "User",
    "actor_id": "alice\n\u2028",
    "action": "read",
    "resource_type": "Repo",
    "resource_id": "r",
    "context_facts": [],
}


def call(path="/api/authorize", content=ASKED):
    headers = {"authorization": f"Bearer {TEST_KEY}", "x-request-id": "one"}
    # A body may have line breaks.
    return Call("POST", path, "", headers, json.dumps(content, indent=2).encode())


def opened(path, **more):
    settings = DecisionSettings(path=path, **more)
    return DecisionLog(settings, clock=SystemClock(), random=SeededRandom(1))


def note(log, answer=None, asked=None):
    found = answer or Answer(200, b'{"allowed":true}')
    log.follow(found, asked or call(), "default", "k1", lambda: ("token", 3), 0.0)


def lines(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


async def test_a_service_logs_its_questions_and_nothing_else(tmp_path):
    path = tmp_path / "log.jsonl"
    log = opened(path)
    service = Service(
        tmp_path / "data", clock=SystemClock(), random=SeededRandom(1), fsync=False, decisions=log
    )
    await service.open(with_test_key=True)
    try:
        policy = await service.api.call(
            call("/api/policy", {"src": 'actor User {} resource Repo { roles = ["x"]; }'})
        )
        assert policy.status == 200, policy.body
        answer = service.api.call(call())
        assert answer.body == b'{"allowed":false}'
        context = [
            {
                "predicate": "has_role",
                "args": [
                    {"type": "User", "id": "alice"},
                    {"type": "String", "id": "x"},
                    {"type": "Repo", "id": "r"},
                ],
            }
        ]
        variables = {"u": {"type": "User"}, "role": {"type": "String"}, "r": {"type": "Repo"}}
        query = {
            "predicate": ["has_role", list(variables)],
            "constraints": variables,
            "context_facts": context,
        }
        found = service.api.call(call("/api/evaluate_query", query))
        found = found if isinstance(found, Answer) else await found
        refused = service.api.call(call("/api/authorize", {"actor_type": 1}))
        assert refused.status == 400
    finally:
        await service.close()
    first, second = lines(path)
    assert first["request"] == ASKED
    assert first["answer"] == {"allowed": False}
    assert (first["environment"], first["key"], first["call"]) == ("default", "test", "authorize")
    assert (first["request_id"], first["policy_version"]) == ("one", 1)
    assert first["token"]
    assert first["time_ms"] > 0
    assert first["microseconds"] >= 0
    assert second["request"]["context_facts"] == context
    assert second["answer"] == {"results": [{"u": "alice", "role": "x", "r": "r"}]}


def test_fields_are_redacted(tmp_path):
    log = opened(tmp_path / "log", redacted=frozenset(["actor_id", "answer", "no such"]))
    note(log)
    log.close()
    (found,) = lines(tmp_path / "log")
    assert found["request"] == {**ASKED, "actor_id": "[redacted]"}
    assert found["answer"] == "[redacted]"


@pytest.mark.parametrize(("share", "least", "most"), [(0, 0, 0), (0.25, 20, 80), (1, 200, 200)])
def test_a_share_is_drawn(tmp_path, share, least, most):
    log = opened(tmp_path / "log", share=share)
    for _ in range(200):
        note(log)
    log.close()
    assert least <= len(lines(tmp_path / "log")) <= most
    assert log.logged_count == len(lines(tmp_path / "log"))
    assert log.dropped_count == 0


def test_what_is_refused_is_no_decision(tmp_path):
    log = opened(tmp_path / "log")
    note(log, Answer(503, b'{"message":"later"}'))
    log.close()
    assert lines(tmp_path / "log") == []


def test_a_long_answer_is_its_size(tmp_path):
    log = opened(tmp_path / "log")
    body = b'{"results":["' + b"x" * module.ANSWER_BYTES_MAX + b'"]}'
    note(log, Answer(200, body))
    log.close()
    assert lines(tmp_path / "log")[0]["answer"] == {"bytes": len(body)}


def test_what_finds_the_queue_full_is_counted_and_waits_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "QUEUE_MAX", 3)
    began, go_on = threading.Event(), threading.Event()
    line = module.line

    def held(*given):
        began.set()
        go_on.wait(240)
        return line(*given)

    monkeypatch.setattr(module, "line", held)
    log = opened(tmp_path / "log")
    note(log)
    assert began.wait(240)
    for _ in range(19):
        note(log)
    assert log.dropped_count == 16
    go_on.set()
    log.close()
    assert log.logged_count + log.dropped_count == 20
    assert len(lines(tmp_path / "log")) == log.logged_count


def test_a_file_that_cannot_be_written_costs_lines_and_no_answers(tmp_path):
    log = opened(tmp_path / "log")
    (tmp_path / "log").unlink()
    (tmp_path / "log").mkdir()
    note(log)
    log.close()
    assert (log.logged_count, log.dropped_count) == (0, 1)


def test_a_file_that_is_renamed_is_made_again(tmp_path):
    log = opened(tmp_path / "log")
    (tmp_path / "log").rename(tmp_path / "older")
    note(log)
    log.close()
    assert len(lines(tmp_path / "log")) == 1
    assert lines(tmp_path / "older") == []
