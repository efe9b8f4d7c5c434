"""How many microseconds of CPU does a question of authorization cost, compiled and written by hand?

A report, not a test. To compare two commits, run it in a checkout of each, at times in turn:

    PYTHONPATH=src python bench/bench_authz.py [--rounds 3] [--questions 20000] [--json FILE]

With --service the same questions go to a `penstock authz serve` over HTTP: CPU of the server's
process for a check, a list of about 900, and a write, and calls a second by wall clock, which mean
something on a quiet machine alone.

One thread, CPU seconds of the process, the best of the rounds. The model is GitHub's: roles of
organizations and repositories, teams of organizations, issues. `by hand` is the statement that a
person would write for this one policy; `statement` is the compiled one with its parameters bound
already; `authorize` is what a server calls: from actor, action and resource to allowed or not.
Every answer of both is compared.

Aims: `authorize` within twice the time of the statement by hand; list of 900 under 2 ms.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from penstock.authz.facts import schema
from penstock.authz.facts.asking import Asking, Plans
from penstock.authz.polar.check import check
from penstock.authz.polar.program import Fact, Signature, Value
from penstock.authz.polar.query import list_resources

INSTANCE = uuid.uuid4()
KEY = "e_0123456789_12345_osotesttoken01xiIn"
POLICY = """
actor User {}

actor Team {}

resource Organization {
  roles = ["admin", "member"];
  permissions = ["read", "create_repositories"];

  "read" if "member";
  "create_repositories" if "admin";
  "member" if "admin";
}

resource Repository {
  roles = ["reader", "maintainer", "admin"];
  permissions = ["read", "push", "delete"];
  relations = { organization: Organization };

  "read" if "reader";
  "push" if "maintainer";
  "delete" if "admin";
  "reader" if "maintainer";
  "maintainer" if "admin";
  "reader" if "member" on "organization";
  "admin" if "admin" on "organization";
}

resource Issue {
  permissions = ["read", "close"];
  relations = { repository: Repository, creator: User };

  "read" if "read" on "repository";
  "close" if "maintainer" on "repository" or "creator";
}

has_role(user: User, role: String, repository: Repository) if
  has_team(user, team) and
  team matches Team and
  has_role(team, role, repository);
"""

ORGANIZATIONS, REPOSITORIES, USERS, TEAMS, ISSUES = 20, 900, 2_000, 100, 20_000


def facts(chance: random.Random) -> list[Fact]:
    """About 52,000 facts; the first organization has most repositories."""

    def fact(predicate: str, *arguments: str) -> Fact:
        return Fact(predicate, tuple(Value(*each.split(":")) for each in arguments))

    def some(kind: str, count: int) -> str:
        return f"{kind}:{chance.randrange(count)}"

    def role(*roles: str) -> str:
        return f"String:{chance.choice(roles)}"

    found = []
    repositories = 2 * REPOSITORIES
    for number in range(repositories):
        place = 0 if number < REPOSITORIES else chance.randrange(1, ORGANIZATIONS)
        organization = f"Organization:{place}"
        found.append(
            fact("has_relation", f"Repository:{number}", "String:organization", organization)
        )
    for number in range(USERS):
        user = f"User:{number}"
        given = role("admin", *["member"] * 20)
        found.append(fact("has_role", user, given, some("Organization", ORGANIZATIONS)))
        for _ in range(2):
            given = role("reader", "maintainer", "admin")
            found.append(fact("has_team", user, some("Team", TEAMS)))
            found.append(fact("has_role", user, given, some("Repository", repositories)))
    for number in range(TEAMS):
        for _ in range(5):
            given = role("reader", "maintainer")
            repository = some("Repository", repositories)
            found.append(fact("has_role", f"Team:{number}", given, repository))
    for number in range(ISSUES):
        issue = f"Issue:{number}"
        found += [
            fact("has_relation", issue, "String:repository", some("Repository", repositories)),
            fact("has_relation", issue, "String:creator", some("User", USERS)),
        ]
    return found


def table(predicate: str, *types: str) -> str:
    return schema.table(Signature(predicate, types))


def by_hand() -> str:
    """May a user (?1) read an issue (?2): as a person writes it."""
    role, team_role = (table("has_role", kind, "String", "Repository") for kind in ("User", "Team"))
    roles = "('reader', 'maintainer', 'admin')"
    return f"""
SELECT 1 FROM {table("has_relation", "Issue", "String", "Repository")} AS i
WHERE i.a0 = ?2 AND i.a1 = 'repository' AND (
  EXISTS (SELECT 1 FROM {role} AS r WHERE r.a0 = ?1 AND r.a1 IN {roles} AND r.a2 = i.a2)
  OR EXISTS (SELECT 1 FROM {table("has_relation", "Repository", "String", "Organization")} AS o
    CROSS JOIN {table("has_role", "User", "String", "Organization")} AS r
    WHERE o.a0 = i.a2 AND o.a1 = 'organization' AND r.a0 = ?1
      AND r.a1 IN ('member', 'admin') AND r.a2 = o.a2)
  OR EXISTS (SELECT 1 FROM {table("has_team", "User", "Team")} AS t
    CROSS JOIN {team_role} AS r
    WHERE t.a0 = ?1 AND r.a0 = t.a1 AND r.a1 IN {roles} AND r.a2 = i.a2))
"""


def best_us(work: Callable[[], object], rounds: int, count: int) -> float:
    """CPU microseconds per question of the fastest round, after one that warms up."""
    work()
    found = float("inf")
    for _ in range(rounds):
        before = time.process_time()
        work()
        found = min(found, time.process_time() - before)
    return found / count * 1e6


def served(
    stored: list[Fact],
    asked: list[tuple[str, str]],
    answers: list[bool],
    member: Value,
    connections: int,
    rounds: int,
) -> dict[str, float]:
    """Ask a service's process, and take its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [sys.executable, "-m", "penstock", "authz", "serve", "--data", folder]
        command += ["--http", f"127.0.0.1:{port}", "--test-key", "--log-level", "warning"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            return asyncio.run(
                _served(process.pid, port, stored, asked, answers, member, connections, rounds)
            )
        finally:
            process.terminate()
            process.wait()


async def _served(
    pid: int,
    port: int,
    stored: list[Fact],
    asked: list[tuple[str, str]],
    answers: list[bool],
    member: Value,
    connections: int,
    rounds: int,
) -> dict[str, float]:
    rows: dict[str, float] = {}
    for _ in range(600):
        try:
            clients = [await Client.open(port) for _ in range(connections)]
            break
        except OSError:
            await asyncio.sleep(0.05)
    await clients[0].call("policy", {"src": POLICY, "filename": ""})
    batches = [
        [{"inserts": [as_json(fact) for fact in stored[start : start + 1_000]]}]
        for start in range(0, len(stored), 1_000)
    ]
    before = cpu_s(pid)
    for batch in batches:
        await clients[0].call("batch", batch)
    rows["service: insert by 1,000, CPU us per fact"] = (cpu_s(pid) - before) / len(stored) * 1e6

    async def measured(name: str, requests: list[bytes], count: int) -> list[bytes]:
        shares = [requests[number::count] for number in range(count)]
        best_cpu, best_wall, found = float("inf"), float("inf"), []
        for _ in range(rounds):
            cpu, wall = cpu_s(pid), time.perf_counter()
            parts = await asyncio.gather(
                *(client.send_all(part) for client, part in zip(clients, shares, strict=False))
            )
            best_cpu = min(best_cpu, cpu_s(pid) - cpu)
            best_wall = min(best_wall, time.perf_counter() - wall)
            found = [b""] * len(requests)
            for number, part in enumerate(parts):
                found[number::count] = part
        rows[f"service: {name}, CPU us"] = best_cpu / len(requests) * 1e6
        rows[f"service: {name}, per second"] = len(requests) / best_wall
        return found

    checks = [
        request(
            "authorize",
            {
                "actor_type": "User",
                "actor_id": user,
                "action": "read",
                "resource_type": "Issue",
                "resource_id": issue,
                "context_facts": [],
            },
        )
        for user, issue in asked
    ]
    found = await measured("check", checks, connections)
    assert [body == b'{"allowed":true}' for body in found] == answers
    wanted = {"actor_type": "User", "actor_id": member.id, "action": "read"}
    lists = [request("list", {**wanted, "resource_type": "Repository", "page_size": 10_000})] * 200
    await measured("list", lists, 1)
    writes = [
        request(
            "batch",
            [
                {
                    "inserts": [
                        as_json(Fact("has_team", (Value("User", f"w{number}"), Value("Team", "1"))))
                    ]
                }
            ],
        )
        for number in range(2_000)
    ]
    await measured("write of one fact", writes, connections)
    for client in clients:
        client.close()
    return rows


def as_json(fact: Fact) -> dict[str, object]:
    args = [{"type": each.type, "id": each.id} for each in fact.arguments]
    return {"predicate": fact.predicate, "args": args}


def request(name: str, content: object) -> bytes:
    """The bytes of a call, with the headers that Oso's Python client sends."""
    body = json.dumps(content).encode()
    head = (
        f"POST /api/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "User-Agent: Oso Cloud (python 3.11.7; rv:2.6.0)\r\nAccept-Encoding: gzip, deflate\r\n"
        "Accept: application/json\r\nConnection: keep-alive\r\n"
        f"Authorization: Bearer {KEY}\r\nX-OsoApiVersion: 0\r\n"
        f"X-Oso-Instance-Id: {INSTANCE}\r\nX-Request-ID: {uuid.uuid4()}\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
    )
    return head.encode() + body


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """One connection; a request is sent when the one before is answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=4 << 20))

    async def call(self, name: str, content: object) -> bytes:
        (body,) = await self.send_all([request(name, content)])
        return body

    async def send_all(self, requests: list[bytes]) -> list[bytes]:
        found = []
        for each in requests:
            self._writer.write(each)
            head = await self._reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            found.append(await self._reader.readexactly(length))
        return found

    def close(self) -> None:
        self._writer.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--service", action="store_true")
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    chance = random.Random(1)
    before = time.process_time()
    program = check(POLICY)
    check_ms = (time.process_time() - before) * 1e3
    connection = sqlite3.connect(":memory:")
    for signature in program.facts:
        for statement in schema.create(signature):
            connection.execute(statement)
    stored = facts(chance)
    before = time.process_time()
    for each in stored:
        connection.execute(schema.insert(each.signature), schema.row(each.ids))
    insert_us = (time.process_time() - before) / len(stored) * 1e6
    connection.commit()
    asked = [
        (str(chance.randrange(USERS)), str(chance.randrange(ISSUES)))
        for _ in range(options.questions)
    ]
    sql = by_hand()
    plans = Plans(program)
    asking = Asking(plans, connection, now_s=0)

    def hand(pair: tuple[str, str]) -> bool:
        return connection.execute(sql, pair).fetchone() is not None

    def authorize(pair: tuple[str, str]) -> bool:
        return asking.authorize(Value("User", pair[0]), "read", Value("Issue", pair[1]))

    answers = [hand(pair) for pair in asked]
    assert answers == [authorize(pair) for pair in asked]
    (check_of_one,) = plans.checks(Value("User", ""), "read", Value("Issue", ""), frozenset())
    statement = check_of_one.plan.sql
    bound = [check_of_one.bindings((user, "read", issue), 0, {}) for user, issue in asked]
    rows: dict[str, float] = {"facts": len(stored), "allowed": sum(answers) / len(answers)}
    rows["check the policy, ms"] = check_ms
    rows["insert, us per fact"] = insert_us
    count = len(asked)
    rounds = options.rounds
    rows["by hand, us"] = best_us(lambda: [hand(pair) for pair in asked], rounds, count)
    rows["statement, us"] = best_us(
        lambda: [connection.execute(statement, each).fetchone() for each in bound], rounds, count
    )
    rows["authorize, us"] = best_us(lambda: [authorize(pair) for pair in asked], rounds, count)
    context = [Fact("has_team", (Value("User", "1"), Value("Team", "1")))]

    def with_context(pair: tuple[str, str]) -> bool:
        given = Asking(plans, connection, now_s=0, context=context)
        return given.authorize(Value("User", pair[0]), "read", Value("Issue", pair[1]))

    rows["authorize with a context fact, us"] = best_us(
        lambda: [with_context(pair) for pair in asked], rounds, count
    )
    member = next(
        each.arguments[0]
        for each in stored
        if each.predicate == "has_role" and each.arguments[2] == Value("Organization", "0")
    )
    question = list_resources(member, "read", "Repository")
    rows["list, results"] = len(asking.ids(question))
    rows["list, us"] = best_us(lambda: [asking.ids(question) for _ in range(50)], rounds, 50)
    if options.service:
        rows |= served(stored, asked, answers, member, options.connections, rounds)
    for name, value in rows.items():
        print(f"{name:40} {value:12,.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
