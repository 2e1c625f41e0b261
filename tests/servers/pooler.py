"""A small transaction pooler for PostgreSQL, to be found out by `outbox check`.

It lends a server session for one transaction and takes it back when the server is idle
again, as PgBouncer does with `pool_mode = transaction`; the session used last is lent first.
Trust authentication, no COPY, no cancelling: enough for what the check sends.
"""

from __future__ import annotations

import socket
import struct
import threading
from urllib.parse import urlsplit

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104


class TransactionPooler:
    """Listens on a port of its own in front of the server behind `url`."""

    def __init__(self, url: str, sessions: int) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._limit = sessions
        self._idle: list[socket.socket] = []
        self._opened = 0
        self._greeting = b""
        self._free = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.replace(f":{parts.port}", f":{port}")
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for session in self._idle:
            session.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            startup = self._startup(client)
            with self._free:
                if not self._greeting:
                    self._idle.append(self._open(startup))
            client.sendall(self._greeting)
            session = None
            while True:
                request, kind = b"", b""
                # A simple query, or everything up to a Sync, or goodbye.
                while kind not in (b"Q", b"S", b"X"):
                    kind, message = _message(client)
                    request += message
                if kind == b"X":
                    break
                session = session or self._lend(startup)
                session.sendall(request)
                status = b""
                while not status:
                    kind, message = _message(session)
                    client.sendall(message)
                    status = message[5:6] if kind == b"Z" else b""
                if status == b"I":
                    session = self._take_back(session)
            if session is not None:
                session.close()
        except OSError:
            pass
        finally:
            client.close()

    def _startup(self, client: socket.socket) -> bytes:
        while True:
            head = _exactly(client, 8)
            length, code = struct.unpack("!ii", head)
            rest = _exactly(client, length - 8)
            if code not in (SSL_REQUEST, GSS_REQUEST):
                return head + rest
            client.sendall(b"N")

    def _open(self, startup: bytes) -> socket.socket:
        session = socket.create_connection(self._server)
        session.sendall(startup)
        greeting, kind = b"", b""
        while kind != b"Z":
            kind, message = _message(session)
            greeting += message
        self._greeting = self._greeting or greeting
        self._opened += 1
        return session

    def _lend(self, startup: bytes) -> socket.socket:
        with self._free:
            while not self._idle and self._opened >= self._limit:
                self._free.wait()
            return self._idle.pop() if self._idle else self._open(startup)

    def _take_back(self, session: socket.socket) -> None:
        with self._free:
            self._idle.append(session)
            self._free.notify()


def _message(connection: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(connection, 5)
    return head[:1], head + _exactly(connection, struct.unpack("!i", head[1:])[0] - 4)


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionError
        received += part
    return received
