"""AlterUserScramCredentials 0 (KIP-554): set or delete one credential for each user.

Checks and their order are Kafka 4.3.1's, which refuses a user who is named twice, be it for two
mechanisms. Stricter than Kafka, which takes any: a name and a salt have at most 255 characters and
bytes, the salt isn't empty, and the salted password is as long as the hash.

The client sends the salted password. What is journaled is derived from it, and suffices to check
a proof but not to make one.
"""

from typing import TYPE_CHECKING, Final

from penstock.kafka.access import refusal_text
from penstock.kafka.admin.commit import commit
from penstock.kafka.answer_bounds import BASE_BYTES, REPEATED, TEXT_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.security.scram.credential import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    derive,
)
from penstock.state.commands import AnyCommand
from penstock.state.security_commands import (
    CREDENTIALS_MAX,
    SALT_BYTES_MAX,
    USER_NAME_LENGTH_MAX,
    DeleteCredential,
    SaveCredential,
)

if TYPE_CHECKING:
    from kio.schema.alter_user_scram_credentials.v0.request import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
    )

_MECHANISMS: Final = {int(one): one for one in ScramMechanism}
_NO_USER: Final = Outcome(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
_LONG_USER: Final = Outcome(
    ErrorCode.UNACCEPTABLE_CREDENTIAL,
    f"A username has at most {USER_NAME_LENGTH_MAX} characters",
)
_UNKNOWN_MECHANISM: Final = Outcome(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
_TOO_FEW: Final = Outcome(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
_TOO_MANY: Final = Outcome(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
_BAD_SALT: Final = Outcome(
    ErrorCode.UNACCEPTABLE_CREDENTIAL, f"A salt has 1 to {SALT_BYTES_MAX} bytes"
)
_BAD_PASSWORD: Final = Outcome(
    ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password is not as long as the hash"
)
_FULL: Final = Outcome(
    ErrorCode.UNACCEPTABLE_CREDENTIAL, f"At most {CREDENTIALS_MAX} credentials are kept"
)
_TWICE: Final = Outcome(
    ErrorCode.DUPLICATE_RESOURCE,
    "A user credential cannot be altered twice in the same request",
)
_ABSENT: Final = Outcome(
    ErrorCode.RESOURCE_NOT_FOUND,
    "Attempt to delete a user credential that does not exist",
)


async def handle(context: RequestContext, request: "AlterUserScramCredentialsRequest") -> Answer:
    """Plan each user's changes, and commit those that nothing speaks against."""
    types = response_types("alter_user_scram_credentials", context.api_version)
    plan = _Plan(context)
    async for deletion in context.broker.turns.each(request.deletions):
        plan.delete(deletion)
    async for upsertion in context.broker.turns.each(request.upsertions):
        plan.save(upsertion)
    waiting = context.reserve_answer(plan.bound())
    if waiting is not None:
        return waiting
    refused = context.access.cluster(Operation.ALTER)
    if refused:
        plan.refuse_all(Outcome(refused, refusal_text(refused)))
    outcomes = iter(await commit(context, plan.taken()))
    results = ArrayWriter(types.AlterUserScramCredentialsResult)
    async for user in context.broker.turns.each(plan.commands):
        outcome = plan.refused.get(user) or next(outcomes)
        results.add(user=user, error_code=outcome.error, error_message=outcome.message)
    return build(types.AlterUserScramCredentialsResponse, results=results.encoded())


class _Plan:
    """The commands of a request by user, and why a user's are refused."""

    def __init__(self, context: RequestContext) -> None:
        self._known = context.broker.view.credentials
        self._room = CREDENTIALS_MAX - context.broker.view.credential_count
        self.commands: dict[str, AnyCommand | None] = {}
        """The command of each user; None: the user's change is refused."""
        self.refused: dict[str, Outcome] = {}

    def delete(self, deletion: "ScramCredentialDeletion") -> None:
        """Plan a deletion."""
        user, mechanism = deletion.name, deletion.mechanism
        if self._takes(user, mechanism):
            if any(one.value == int(mechanism) for one in self._known.get(user, {})):
                self.commands[user] = DeleteCredential(user=user, mechanism=mechanism)
            else:
                self.refused[user] = _ABSENT

    def save(self, upsertion: "ScramCredentialUpsertion") -> None:
        """Plan a new credential, or another in place of one."""
        user, number = upsertion.name, upsertion.mechanism
        if not self._takes(user, number):
            return
        mechanism = ScramMechanism(number)
        if upsertion.iterations < ITERATIONS_MIN:
            self.refused[user] = _TOO_FEW
        elif upsertion.iterations > ITERATIONS_MAX:
            self.refused[user] = _TOO_MANY
        elif not self._has_room(user, mechanism):
            self.refused[user] = _FULL
        elif not 0 < len(upsertion.salt) <= SALT_BYTES_MAX:
            self.refused[user] = _BAD_SALT
        elif len(upsertion.salted_password) != mechanism.key_bytes:
            self.refused[user] = _BAD_PASSWORD
        else:
            found = derive(
                mechanism,
                bytes(upsertion.salted_password),
                salt=bytes(upsertion.salt),
                iterations=upsertion.iterations,
            )
            self.commands[user] = SaveCredential(
                user=user,
                mechanism=number,
                iterations=found.iterations,
                salt=found.salt,
                stored_key=found.stored_key,
                server_key=found.server_key,
            )

    def _has_room(self, user: str, mechanism: ScramMechanism) -> bool:
        if mechanism in self._known.get(user, {}):
            return True
        self._room -= 1
        return self._room >= 0

    def refuse_all(self, outcome: Outcome) -> None:
        """Refuse the changes of every user."""
        self.refused = dict.fromkeys(self.commands, outcome)

    def taken(self) -> list[AnyCommand]:
        """Return the commands of users who aren't refused, in the order of the users."""
        return [
            command
            for user, command in self.commands.items()
            if command is not None and user not in self.refused
        ]

    def bound(self) -> int:
        """Return the most bytes of the answer."""
        return BASE_BYTES + sum(TEXT_BYTES + REPEATED * text_bytes(user) for user in self.commands)

    def _takes(self, user: str, mechanism: int) -> bool:
        """Whether this is the first change of a user, and may be made; else it's refused, for
        the first reason that was found."""
        if user in self.refused:
            return False
        refusal = None
        if user in self.commands:
            refusal = _TWICE
        elif not user:
            refusal = _NO_USER
        elif len(user) > USER_NAME_LENGTH_MAX:
            refusal = _LONG_USER
        elif int(mechanism) not in _MECHANISMS:
            refusal = _UNKNOWN_MECHANISM
        self.commands[user] = None
        if refusal is not None:
            self.refused[user] = refusal
        return refusal is None
