"""A raw client of SASL on a loopback socket, and a broker that has users."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from typing import Any

from penstock.kafka.broker import Broker
from penstock.kafka.registry import APIS
from penstock.kafka.wire import schema
from penstock.security.authenticator import Authenticator
from penstock.security.listener import Listener, Protocol
from penstock.security.passwords import PasswordChecks
from penstock.security.sasl.oauthbearer import CheckToken
from penstock.security.scram.credential import ScramMechanism, derive, salt_password
from penstock.state.security_commands import DeleteCredential, SaveCredential
from penstock.system import SystemRandom
from support.loopback import Client

HANDSHAKE, AUTHENTICATE, API_VERSIONS, METADATA = 17, 36, 18, 3
SALT = b"a salt of the tests"
ITERATIONS = 4096
LISTENER = Listener("SASL_PLAINTEXT", Protocol.SASL_PLAINTEXT, "127.0.0.1", 9092)
ALL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def no_token(text: str) -> Any:
    raise AssertionError(f"no token is expected: {text}")


def authenticate(
    broker: Broker,
    mechanisms: tuple[str, ...] = ALL[:3],
    *,
    check_token: CheckToken = no_token,
    **options: Any,
) -> PasswordChecks:
    """Have a broker's clients of SASL authenticate; what checks passwords is to be closed."""
    passwords = PasswordChecks()
    broker.listeners = (LISTENER,)
    broker.authenticator = Authenticator(
        mechanisms,
        credentials=lambda: broker.view.credentials,
        passwords=passwords,
        check_token=check_token,
        clock=broker.clock,
        random=SystemRandom(),
        **({"failure_delay_s": 0.0} | options),
    )
    return passwords


def save(broker: Any, user: str, password: bytes, *mechanisms: ScramMechanism) -> None:
    """Give a user a password, for both mechanisms unless they are named."""
    for mechanism in mechanisms or tuple(ScramMechanism):
        salted = salt_password(mechanism, password, salt=SALT, iterations=ITERATIONS)
        made = derive(mechanism, salted, salt=SALT, iterations=ITERATIONS)
        broker.committer.apply(
            SaveCredential(
                user=user,
                mechanism=int(mechanism),
                iterations=ITERATIONS,
                salt=made.salt,
                stored_key=made.stored_key,
                server_key=made.server_key,
            )
        )


def delete(broker: Any, user: str, *mechanisms: ScramMechanism) -> None:
    for mechanism in mechanisms or tuple(ScramMechanism):
        broker.committer.apply(DeleteCredential(user=user, mechanism=int(mechanism)))


class Scram:
    """The client's side of one exchange."""

    def __init__(self, mechanism: str, user: str, password: bytes) -> None:
        self._hash = "sha256" if mechanism.endswith("256") else "sha512"
        self._password = password
        self._bare = f"n={user},r=abcdefgh"
        self.first = f"n,,{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        """The last message, after the server's first."""
        fields = dict(part.split("=", 1) for part in answer.decode().split(","))
        salted = hashlib.pbkdf2_hmac(
            self._hash, self._password, base64.b64decode(fields["s"]), int(fields["i"])
        )
        without_proof = f"c=biws,r={fields['r']}"
        signed = f"{self._bare},{answer.decode()},{without_proof}".encode()
        key = hmac.digest(salted, b"Client Key", self._hash)
        stored = hashlib.new(self._hash, key).digest()
        signature = hmac.digest(stored, signed, self._hash)
        proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


class SaslClient:
    """One connection; each call is answered with an entity, or with None if the server ends it."""

    def __init__(self, client: Client) -> None:
        self.reader, self.writer = client
        self._number = 0

    def send(self, key: int, version: int, **fields: Any) -> None:
        """Send a request."""
        api = APIS[key]
        request_type = getattr(schema.request_types(api.module, version), f"{api.name}Request")
        body = schema.encode_request(schema.build(request_type, **fields))
        self._number += 1
        head = struct.pack(">hhih", key, version, self._number, 1) + b"c"
        if version >= api.flexible_from:
            head += b"\0"
        self.send_bare(head + body)

    def send_bare(self, frame: bytes) -> None:
        """Send a frame."""
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive_bare(self) -> bytes | None:
        """The next frame; None: the server has ended the connection."""
        try:
            size = await self.reader.read(4)
        except ConnectionResetError:  # the server had not read all
            return None
        if not size:
            return None
        return await self.reader.readexactly(struct.unpack(">i", size)[0])

    async def call(self, key: int, version: int, **fields: Any) -> Any:
        """Send a request and return its answer."""
        self.send(key, version, **fields)
        return await self.answer(key, version)

    async def answer(self, key: int, version: int) -> Any:
        """The answer to the request that was sent last."""
        frame = await self.receive_bare()
        if frame is None:
            return None
        assert struct.unpack_from(">i", frame)[0] == self._number
        api = APIS[key]
        start = 5 if version >= api.flexible_from and key != API_VERSIONS else 4
        return schema.decode_response(api.module, version, memoryview(frame)[start:])

    async def is_ended(self) -> bool:
        """Whether the server ends the connection and says nothing more. Waits for that."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:  # the server had not read all
            return True

    async def handshake(self, mechanism: str, version: int = 1) -> Any:
        return await self.call(HANDSHAKE, version, mechanism=mechanism)

    async def token(self, message: bytes, version: int = 2) -> Any:
        return await self.call(AUTHENTICATE, version, auth_bytes=message)

    async def plain(self, user: str, password: bytes) -> Any:
        """Authenticate by PLAIN; the last answer."""
        assert (await self.handshake("PLAIN")).error_code == 0
        return await self.token(b"\0" + user.encode() + b"\0" + password)

    async def scram(self, mechanism: str, user: str, password: bytes) -> Any:
        """Authenticate by SCRAM; the last answer."""
        assert (await self.handshake(mechanism)).error_code == 0
        client = Scram(mechanism, user, password)
        first = await self.token(client.first)
        assert first.error_code == 0
        return await self.token(client.final(first.auth_bytes))

    async def metadata(self) -> Any:
        """Ask for what a client may ask for once it has authenticated."""
        return await self.call(METADATA, 1, topics=())
