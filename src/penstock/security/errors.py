"""Errors of authentication. Pure."""

from penstock.model.errors import InvalidRequestError


class AuthenticationFailedError(InvalidRequestError):
    """A client failed to authenticate. `detail` is for the log: it names no secret."""

    def __init__(self, detail: str) -> None:
        super().__init__("authenticate", "client", detail)


class IllegalSaslStateError(InvalidRequestError):
    """A request came in a state of authentication in which it isn't taken."""

    def __init__(self, api: str, state: str) -> None:
        super().__init__("authenticate", "client", f"{api} is not taken in state {state}")


class SessionExpiredError(InvalidRequestError):
    """A client that should have re-authenticated sent another request instead."""

    def __init__(self, api: str, late_s: float) -> None:
        super().__init__("authenticate", "client", f"{api} came {late_s:.1f} s after its session")
