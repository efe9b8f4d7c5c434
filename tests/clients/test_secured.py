"""Clients over TLS and SASL, against a server that also has a listener for its administrator.

Each client library proves who it is by each mechanism that it has, and is allowed what access rules
give its user. Credentials are made by librdkafka's admin API.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import root
from support.certificates import Authority
from support.ports import adjacent_ports
from support.server import ServerProcess

DEADLINE_S = 120
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "a word of alice's, and a comma=3D"
WORKERS_PORTS = 4
Run = Callable[[tuple[str, ...], dict[str, str]], Result]


class Secured(NamedTuple):
    """A running server. `password` is alice's; the listener of SSL asks for certificates."""

    server: ServerProcess
    authority: Authority
    sasl: str
    tls: str

    @property
    def admin(self) -> Any:
        """An administrator's client, who needs no password."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.server.bootstrap})

    def librdkafka(self, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
        return {
            "bootstrap.servers": self.sasl,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        }


def start(folder: Path, **settings: str) -> Secured:
    authority = Authority(folder)
    server = ServerProcess(folder / "data", folder / "server.log")
    # Each worker has a port of its own after each of these.
    server.kafka_port, server.http_port, sasl, tls = [
        adjacent_ports(WORKERS_PORTS) for _ in range(4)
    ]
    server.settings = {
        "LISTENERS": f"ADMIN://{server.bootstrap},SASL_SSL://127.0.0.1:{sasl},"
        f"SSL://127.0.0.1:{tls}",
        "ADVERTISED_LISTENERS": f"SASL_SSL://localhost:{sasl}",
        "LISTENER_SECURITY_PROTOCOL_MAP": "ADMIN:PLAINTEXT",
        "SSL_CERTIFICATE": str(authority.sign("server")),
        "SSL_CA": str(authority.ca),
        "SSL_CLIENT_AUTH": "required",
        "SSL_PRINCIPAL_MAPPING_RULES": "RULE:^CN=([^,]*),O=Example$/$1/L,DEFAULT",
        "SASL_ENABLED_MECHANISMS": ",".join(MECHANISMS),
        "AUTHORIZER": "acl",
        "SUPER_USERS": "User:ANONYMOUS",
        "GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        **settings,
    }
    server.start()
    return Secured(server, authority, f"localhost:{sasl}", f"localhost:{tls}")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = start(tmp_path_factory.mktemp("secured"))
    try:
        admin = found.admin
        save(admin, PASSWORD)
        permit(admin, "alice", "s-")
        yield found
        log = found.server.log.read_text()
        assert PASSWORD not in log
        assert "Traceback" not in log
    finally:
        if found.server.running():
            found.server.kill()


def save(admin: Any, password: str, user: str = "alice") -> None:
    """Set a user's password, for both mechanisms."""
    from confluent_kafka.admin import (
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    # A request may change a user once.
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wanted = UserScramCredentialUpsertion(
            user, ScramCredentialInfo(mechanism, 4096), password.encode()
        )
        for future in admin.alter_user_scram_credentials([wanted]).values():
            future.result(DEADLINE_S)


def permit(admin: Any, user: str, prefix: str) -> None:
    """Let a user do everything with topics and groups whose names begin so."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    rules = [
        AclBinding(
            kind,
            prefix,
            ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    for future in admin.create_acls(rules).values():
        future.result(DEADLINE_S)


def by_librdkafka(secured: Secured, mechanism: str, topic: str) -> list[bytes]:
    from confluent_kafka import Consumer, Producer

    common = secured.librdkafka(mechanism)
    refused: list[object] = []
    producer = Producer(common)
    for number in range(10):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert refused == [None] * 10
    consumer = Consumer(common | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return [bytes(m.value()) for m in consumer.consume(10, DEADLINE_S)]
    finally:
        consumer.close()


def by_kafka_python(secured: Secured, mechanism: str, topic: str) -> list[bytes]:
    from kafka import KafkaConsumer, KafkaProducer

    common = {
        "bootstrap_servers": secured.sasl,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(secured.authority.ca),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    producer = KafkaProducer(**common)
    try:
        sent = [producer.send(topic, b"%d" % number) for number in range(10)]
        for future in sent:
            future.get(DEADLINE_S)
    finally:
        producer.close()
    consumer = KafkaConsumer(
        topic,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=DEADLINE_S * 1000,
        **common,
    )
    try:
        return [record.value for record in islice(consumer, 10)]
    finally:
        consumer.close()


def by_aiokafka(secured: Secured, mechanism: str, topic: str) -> list[bytes]:
    return asyncio.run(_by_aiokafka(secured, mechanism, topic))


async def _by_aiokafka(secured: Secured, mechanism: str, topic: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    common = {
        "bootstrap_servers": secured.sasl,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=secured.authority.ca),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    async with asyncio.timeout(DEADLINE_S), AIOKafkaProducer(**common) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, b"%d" % number)
    consumer = AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **common)
    async with asyncio.timeout(DEADLINE_S), consumer:
        return [(await consumer.getone()).value for _ in range(10)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [by_librdkafka, by_kafka_python, by_aiokafka])
def test_a_client_writes_and_reads_by_each_mechanism(
    secured: Secured,
    name: Callable[[str], str],
    client: Callable[[Secured, str, str], list[bytes]],
    mechanism: str,
) -> None:
    topic = create(secured, "s-" + name("of-alice"))
    assert client(secured, mechanism, topic) == [b"%d" % number for number in range(10)]


def create(secured: Secured, topic: str) -> str:
    from confluent_kafka.admin import NewTopic

    admin = secured.admin  # futures end with it
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
    return topic


def produced(config: dict[str, str], topic: str) -> Any:
    """Produce a record; the error, or None."""
    from confluent_kafka import Producer

    errors: list[Any] = []
    producer = Producer(config)
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return errors[0] and errors[0].name()


def test_rules_hold_for_the_user_who_has_authenticated(
    secured: Secured, name: Callable[[str], str]
) -> None:
    own, other = create(secured, "s-" + name("own")), create(secured, name("other"))
    alice = secured.librdkafka("SCRAM-SHA-256")
    assert produced(alice, own) is None
    assert produced(alice, other) == "TOPIC_AUTHORIZATION_FAILED"


def test_a_certificate_names_the_user(secured: Secured, name: Callable[[str], str]) -> None:
    own, other = create(secured, "s-" + name("own")), create(secured, name("other"))
    by_certificate = {
        "bootstrap.servers": secured.tls,
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.authority.ca),
    }

    def of(user: str) -> dict[str, str]:
        path = str(secured.authority.sign(user))
        return by_certificate | {"ssl.certificate.location": path, "ssl.key.location": path}

    # The rule makes the name lower case.
    assert produced(of("ALICE"), own) is None
    assert produced(of("ALICE"), other) == "TOPIC_AUTHORIZATION_FAILED"
    assert produced(of("Bob"), own) == "TOPIC_AUTHORIZATION_FAILED"


@pytest.fixture
def command(secured: Secured, tmp_path: Path) -> Run:
    """Run a command of `penstock` with a file of settings."""

    def run(words: tuple[str, ...], config: dict[str, str]) -> Result:
        server = config.pop("bootstrap.servers")
        file = tmp_path / "client.properties"
        file.touch(mode=0o600)
        file.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        more = ["--server", server, "--command-config", str(file), "--timeout", str(DEADLINE_S)]
        return CliRunner().invoke(root, [*words, *more])

    return run


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_commands_say_who_they_are_by_a_file(
    secured: Secured, name: Callable[[str], str], command: Run, mechanism: str
) -> None:
    topic = "s-" + name("of-command")
    made = command(("topic", "create", topic), secured.librdkafka(mechanism))
    assert made.exit_code == 0, made.exception
    assert made.stdout == f"created {topic} with 1 partition\n"
    described = command(("topic", "describe", topic), secured.librdkafka(mechanism))
    assert described.exit_code == 0, described.exception
    refused = command(("user", "list"), secured.librdkafka(mechanism))
    assert "CLUSTER_AUTHORIZATION_FAILED" in str(refused.exception)


def test_commands_may_show_a_certificate(
    secured: Secured, name: Callable[[str], str], command: Run
) -> None:
    config = {
        "bootstrap.servers": secured.tls,
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.authority.ca),
        "ssl.certificate.location": str(secured.authority.sign("ALICE")),
    }
    made = command(("topic", "create", "s-" + name("by-certificate")), config)
    assert made.exit_code == 0, made.exception


def test_a_command_that_is_refused_says_why(
    secured: Secured, command: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    right = secured.librdkafka("SCRAM-SHA-256")
    other = Authority(tmp_path_factory.mktemp("other"), "other")
    for changed, said in (
        ({"sasl.password": "wrong"}, "SASL_AUTHENTICATION_FAILED"),
        ({"sasl.username": "mallory"}, "SASL_AUTHENTICATION_FAILED"),
        ({"ssl.ca.location": str(other.ca)}, "its certificate is not trusted"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "the server closed the connection"),
    ):
        found = command(("topic", "list"), right | changed)
        assert found.exit_code == 1
        assert said in str(found.exception), changed


@pytest.mark.parametrize("workers", ["1", "2"])
def test_passwords_outlive_the_server(tmp_path: Path, workers: str) -> None:
    found = start(tmp_path, WORKERS=workers)
    try:
        save(found.admin, PASSWORD)
        permit(found.admin, "alice", "s-")
        topic = create(found, "s-kept")
        for mechanism in MECHANISMS:
            assert produced(found.librdkafka(mechanism), topic) is None
        found.server.kill()
        found.server.start()
        for mechanism in MECHANISMS:
            assert produced(found.librdkafka(mechanism), topic) is None
    finally:
        if found.server.running():
            found.server.kill()
