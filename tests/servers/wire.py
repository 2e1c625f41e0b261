"""A wire between a client and a server that can be cut and mended: a proxy for TCP."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.servers.process import free_port


class Wire:
    """Listens on `port` and passes everything on to a server on this machine, while it is whole."""

    def __init__(self) -> None:
        self.port = free_port()
        self._target = 0
        self._whole = threading.Event()
        self._whole.set()
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, port: int) -> None:
        self._target = port

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        self._whole.clear()
        with self._lock:
            ends, self._ends = self._ends, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._whole.is_set():
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            for end in (client, server):
                # Else each answer waits 40 ms for more to come.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._ends |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(65536):
                sink.sendall(received)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._ends.discard(end)
