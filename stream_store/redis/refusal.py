"""What a server's refusal, or its silence, means for us."""

from __future__ import annotations

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterCrossSlotError,
    RedisError,
)

from outbox.errors import OutboxError, StreamCorrupt, StreamUnavailable, Unsupported

_GOES_ON = "the relay goes on by itself"
# The first word of a refusal, and what to do about it. All of these pass.
_PASSING = {
    "OOM": f"the server's memory is full (maxmemory): raise it, or trim the stream; {_GOES_ON} then",
    "LOADING": f"the server is reading its files after a start: {_GOES_ON} when it is done",
    "READONLY": "this is a replica: let the URL, or the name in it, lead to the primary",
    "MASTERDOWN": f"this is a replica that has lost its primary: {_GOES_ON} when there is one",
    "NOREPLICAS": f"fewer replicas than min-replicas-to-write are well: {_GOES_ON} when they are back",
    "MISCONF": f"the server cannot write its own files: make room on its disk; {_GOES_ON} then",
    "BUSY": f"the server is busy with somebody's script: {_GOES_ON} when it has ended (SCRIPT KILL ends it)",
    "NOAUTH": "the server wants a user and a password: write redis://user:password@host:port/db/name",
    "WRONGPASS": "the user or the password is wrong, or the user was switched off: ACL SETUSER mends it",
    "NOPERM": "the user may not do this: see docs/stream-redis.md for the rights it needs (ACL SETUSER)",
    "CLUSTERDOWN": f"the cluster is down: {_GOES_ON} when it is up",
    "TRYAGAIN": f"the cluster is moving keys: {_GOES_ON}",
}
CREDENTIALS = ("NOAUTH", "WRONGPASS", "NOPERM")
_SCRIPT_PREFIXES = ("ERR Error running script", "ERR user_script", "Error running script", "user_script")


class Refused(StreamUnavailable):
    """A refusal that passes; `word` is its first word."""

    def __init__(self, message: str, word: str) -> None:
        super().__init__(message)
        self.word = word


def as_ours(error: RedisError, action: str, url: str) -> OutboxError:
    """The client library's error as one that says what happened and what to do."""
    text = " ".join(str(error).split())
    word = word_of(error)
    if word in _PASSING:
        return Refused(f"{action} {url}: {text}; {_PASSING[word]}", word)
    if isinstance(error, AskError | ClusterCrossSlotError):
        return Unsupported(
            f"{action} {url}: {text}; Redis Cluster moves keys between servers, which is not supported: use a server "
            "of its own with replicas"
        )
    if "equal or smaller than the target stream top item" in text:
        return StreamCorrupt(
            f"{action} {url}: {text}; somebody else writes to the stream's keys: keep others away from them by ACLs, "
            "and see `outbox stream check`"
        )
    if "unknown command" in text or "syntax error" in text:
        return Unsupported(f"{action} {url}: {text}; Redis 6.2 or newer is needed")
    if word == "WRONGTYPE":
        return StreamCorrupt(f"{action} {url}: {text}; something else is stored under the stream's keys: choose a name")
    return StreamUnavailable(f"{action} {url}: {text or type(error).__name__}; {_GOES_ON} when the server answers")


def word_of(error: RedisError) -> str:
    """The first word of a refusal. The client library takes some of them away and says them by a class."""
    name = type(error).__name__
    if name in _WORDS:
        return _WORDS[name]
    text = str(error)
    for prefix in _SCRIPT_PREFIXES:
        if text.startswith(prefix):
            text = text.partition(": ")[2].removeprefix("-").removeprefix("@user_script: ")
            break
    first = text.split(" ", 1)[0].lstrip("-@").rstrip(":")
    if first in _PASSING or first == "WRONGTYPE":
        return first
    if isinstance(error, AuthenticationError | AuthorizationError):
        return "NOAUTH" if "required" in text else "WRONGPASS"
    return next((known for known in _PASSING if f"{known} " in text), first)


_WORDS = {
    "OutOfMemoryError": "OOM",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "MasterDownError": "MASTERDOWN",
    "NoPermissionError": "NOPERM",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
}
