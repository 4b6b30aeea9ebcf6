"""The visitors that have signed in, and the tokens that pages show with their changes. No I/O, no clock.

Every browser has a cookie with a random name, which no script can read. The token that belongs to it is made from the
name and a secret of this process, and only our own page is told it: whoever has the browser send a request from
somewhere else does not know it. So a visitor who has not signed in costs no memory, and crowds out nobody who has.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final, Generic, TypeVar

SESSIONS_MAX: Final = 64
"""Accounts that may be signed in at once; each has connections of its own to the brokers."""
IDLE_S_MAX: Final = 30 * 60.0
AGE_S_MAX: Final = 12 * 3600.0
SIGN_INS_PER_MINUTE_MAX: Final = 30
"""The sign-ins of all visitors together: a guessed secret is one of many, and each guess costs the brokers a
signature."""

_NAME_BYTES = 32

Seat = TypeVar("Seat")


class TooManyError(Exception):
    """Too many sessions, or attempts to sign in; later there is room again."""


class _Session(Generic[Seat]):
    __slots__ = ("begun_s", "seat", "used_s")

    def __init__(self, seat: Seat, now_s: float) -> None:
        self.seat = seat
        self.begun_s = self.used_s = now_s


class Sessions(Generic[Seat]):
    """Those who have signed in, by the name in their cookie. ``ended`` is called with the seat of each that is over."""

    def __init__(self, now_s: Callable[[], float], ended: Callable[[Seat], None]) -> None:
        self._now_s = now_s
        self._ended = ended
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, _Session[Seat]] = {}
        self._attempts_s: list[float] = []

    @staticmethod
    def new_name() -> str:
        """Return a name for a browser that has none."""
        return secrets.token_urlsafe(_NAME_BYTES)

    def token(self, name: str) -> str:
        """Return the token that belongs to a name."""
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def is_token(self, name: str, token: str) -> bool:
        """Tell whether that is the token of the name, in the same time for each wrong one."""
        return hmac.compare_digest(self.token(name).encode(), token.encode())

    def check_attempt(self) -> None:
        """Count an attempt to sign in. Raises `TooManyError`."""
        now_s = self._now_s()
        self._attempts_s = [at_s for at_s in self._attempts_s if at_s > now_s - 60]
        if len(self._attempts_s) >= SIGN_INS_PER_MINUTE_MAX:
            raise TooManyError("too many attempts to sign in: wait a minute")
        self._attempts_s.append(now_s)

    def begin(self, seat: Seat) -> str:
        """Begin a session under a new name, so that nobody can have known it before; returns that. Raises
        `TooManyError`."""
        self.end_old()
        if len(self._sessions) >= SESSIONS_MAX:
            raise TooManyError(f"{SESSIONS_MAX} accounts are signed in: wait until one of them signs out")
        name = self.new_name()
        self._sessions[name] = _Session(seat, self._now_s())
        return name

    def find(self, name: str) -> Seat | None:
        """Return the seat of whoever has signed in under that name; None if nobody has, or it is over."""
        self.end_old()
        session = self._sessions.get(name)
        if session is None:
            return None
        session.used_s = self._now_s()
        return session.seat

    def end(self, name: str) -> None:
        """End a session; does nothing where there is none."""
        if (session := self._sessions.pop(name, None)) is not None:
            self._ended(session.seat)

    def end_all(self) -> None:
        """End every session."""
        for name in list(self._sessions):
            self.end(name)

    def end_old(self) -> None:
        """End the sessions that nobody has used for a while, or that are too old."""
        now_s = self._now_s()
        for name, session in list(self._sessions.items()):
            if now_s - session.used_s > IDLE_S_MAX or now_s - session.begun_s > AGE_S_MAX:
                self.end(name)
