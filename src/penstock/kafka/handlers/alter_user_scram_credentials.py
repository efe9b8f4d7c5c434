"""AlterUserScramCredentials 0 (KIP-554): set and delete credentials, each user's all or none.

The client sends the salted password. What is journaled is derived from it, and suffices to check
a proof but not to make one.
"""

from collections.abc import Sequence
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
    users = plan.users()
    commands = [command for user in users for command in plan.commands[user]]
    outcomes = iter(await commit(context, commands))
    results = ArrayWriter(types.AlterUserScramCredentialsResult)
    async for user in context.broker.turns.each(plan.commands):
        outcome = plan.refused.get(user)
        if outcome is None:
            outcome = _worst([next(outcomes) for _ in plan.commands[user]])
        results.add(user=user, error_code=outcome.error, error_message=outcome.message)
    return build(types.AlterUserScramCredentialsResponse, results=results.encoded())


class _Plan:
    """The commands of a request by user, and why a user's are refused."""

    def __init__(self, context: RequestContext) -> None:
        self._known = context.broker.view.credentials
        self._room = CREDENTIALS_MAX - context.broker.view.credential_count
        self._seen: set[tuple[str, int]] = set()
        self.commands: dict[str, list[AnyCommand]] = {}
        self.refused: dict[str, Outcome] = {}

    def delete(self, deletion: "ScramCredentialDeletion") -> None:
        """Plan a deletion."""
        user, mechanism = deletion.name, deletion.mechanism
        if self._takes(user, mechanism):
            if not any(one.value == int(mechanism) for one in self._known.get(user, {})):
                self.refused.setdefault(user, _ABSENT)
            self.commands[user].append(DeleteCredential(user=user, mechanism=mechanism))

    def save(self, upsertion: "ScramCredentialUpsertion") -> None:
        """Plan a new credential, or another in place of one."""
        user, number = upsertion.name, upsertion.mechanism
        if not self._takes(user, number):
            return
        mechanism = ScramMechanism(number)
        if upsertion.iterations < ITERATIONS_MIN:
            self.refused.setdefault(user, _TOO_FEW)
        elif upsertion.iterations > ITERATIONS_MAX:
            self.refused.setdefault(user, _TOO_MANY)
        elif not self._has_room(user, mechanism):
            self.refused.setdefault(user, _FULL)
        elif not 0 < len(upsertion.salt) <= SALT_BYTES_MAX:
            self.refused.setdefault(user, _BAD_SALT)
        elif len(upsertion.salted_password) != mechanism.key_bytes:
            self.refused.setdefault(user, _BAD_PASSWORD)
        else:
            found = derive(
                mechanism,
                bytes(upsertion.salted_password),
                salt=bytes(upsertion.salt),
                iterations=upsertion.iterations,
            )
            self.commands[user].append(
                SaveCredential(
                    user=user,
                    mechanism=number,
                    iterations=found.iterations,
                    salt=found.salt,
                    stored_key=found.stored_key,
                    server_key=found.server_key,
                )
            )

    def _has_room(self, user: str, mechanism: ScramMechanism) -> bool:
        if mechanism in self._known.get(user, {}):
            return True
        self._room -= 1
        return self._room >= 0

    def refuse_all(self, outcome: Outcome) -> None:
        """Refuse the changes of every user."""
        self.refused = dict.fromkeys(self.commands, outcome)

    def users(self) -> list[str]:
        """Return the users of whom nothing is refused, in the order in which they are named."""
        return [user for user in self.commands if user not in self.refused]

    def bound(self) -> int:
        """Return the most bytes of the answer."""
        return BASE_BYTES + sum(TEXT_BYTES + REPEATED * text_bytes(user) for user in self.commands)

    def _takes(self, user: str, mechanism: int) -> bool:
        self.commands.setdefault(user, [])
        refusal = None
        if not user:
            refusal = _NO_USER
        elif len(user) > USER_NAME_LENGTH_MAX:
            refusal = _LONG_USER
        elif int(mechanism) not in _MECHANISMS:
            refusal = _UNKNOWN_MECHANISM
        elif (user, mechanism) in self._seen:
            refusal = _TWICE
        self._seen.add((user, mechanism))
        if refusal is None:
            return True
        self.refused.setdefault(user, refusal)
        return False


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    return next((one for one in outcomes if one.error is not ErrorCode.NONE), outcomes[0])
