"""One connection to the server. Nothing is ever sent twice: only the caller knows what that would mean."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.connection import Connection, SSLConnection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from outbox.errors import StreamUnavailable, Unsupported, UsageError
from stream_store.redis.refusal import CREDENTIALS, Refused, as_ours

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stream_store.redis.address import Address
    from stream_store.redis.scripts import Script

Packed = bytes | memoryview
# Servers and what lies between may close a connection that is not used.
IDLE_SECONDS = 10.0


class Link:
    """A connection that is made when it is first used, and again after it was lost."""

    def __init__(self, address: Address) -> None:
        self._url = address.url
        kind = SSLConnection if address.scheme == "rediss" else Connection
        self._connection: Any = kind(**address.connection_options())
        self._used_at = -IDLE_SECONDS
        self.lock = threading.RLock()

    def open(self) -> None:
        """Connect. Credentials that are wrong from the start are the user's mistake, and nothing that passes."""
        try:
            with self._reporting("connecting to"):
                self._connection.connect()
                self.call("PING")
        except Refused as error:
            if error.word in CREDENTIALS:
                raise UsageError(str(error)) from error
            raise

    def refresh(self) -> bool:
        """Make a connection that was closed while it lay idle anew, before anything is sent over it.

        Answers whether it was: the server may have been restarted meanwhile.
        """
        if time.monotonic() - self._used_at < IDLE_SECONDS:
            return False
        try:
            self.call("PING")
        except StreamUnavailable:
            self.call("PING")
            return True
        return False

    def close(self) -> None:
        # Not under the lock: whoever waits for an answer is to wait no longer.
        self._connection.disconnect()

    def pack(self, *words: Any) -> list[Packed]:
        """A command as it goes over the wire."""
        return list(self._connection.pack_command(*words))

    def send(self, parts: Sequence[Packed]) -> None:
        self._used_at = time.monotonic()
        with self._reporting("writing to"):
            self._connection.send_packed_command(parts, check_health=False)

    def receive(self) -> Any:
        """The next answer; a refusal is returned, so that whoever has sent several commands reads them all."""
        with self._reporting("waiting for"):
            try:
                return self._connection.read_response(disable_decoding=True)
            except ResponseError as refusal:
                return refusal

    def call(self, *words: Any) -> Any:
        """One command and its answer."""
        return self.calls([words])[0]

    def calls(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Several commands in one trip. The first refusal is raised once all have been answered."""
        answers = self._answers(commands)
        for words, answer in zip(commands, answers, strict=True):
            if isinstance(answer, ResponseError):
                raise as_ours(answer, f"{words[0]} on", self._url) from answer
        return answers

    def attempts(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Several commands in one trip; None for one that this user may not use, or the server does not know."""
        found = []
        for words, answer in zip(commands, self._answers(commands), strict=True):
            refusal = as_ours(answer, f"{words[0]} on", self._url) if isinstance(answer, ResponseError) else None
            if refusal and not isinstance(refusal, Unsupported) and getattr(refusal, "word", "") != "NOPERM":
                raise refusal
            found.append(None if refusal else answer)
        return found

    def _answers(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        with self.lock:
            self.send([part for words in commands for part in self.pack(*words)])
            return [self.receive() for _ in commands]

    def run(self, script: Script, keys: Sequence[str], *arguments: Any) -> Any:
        """A script and its answer. One that the server does not know has not run: it is loaded then."""
        with self.lock:
            for _ in range(2):
                self.send(self.pack("EVALSHA", script.sha, len(keys), *keys, *arguments))
                answer = self.receive()
                if not isinstance(answer, NoScriptError):
                    break
                self.load(script)
        if isinstance(answer, ResponseError):
            raise as_ours(answer, f"{script.name} on", self._url) from answer
        return answer

    def load(self, script: Script) -> None:
        self.call("SCRIPT", "LOAD", script.text)

    @contextmanager
    def _reporting(self, action: str) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            raise as_ours(error, action, self._url) from error
        except OSError as error:  # TLS files that cannot be read, among others
            raise UsageError(f"{action} {self._url}: {error}") from error
