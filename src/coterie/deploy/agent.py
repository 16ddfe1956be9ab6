"""The resident process of a site: a Unix socket on which packed messages are answered, one after the other."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from coterie.deploy.agent_socket import call, receive, receive_length, send
from coterie.errors import UsageError

__all__ = ["call", "serve", "stop_on_signals"]

PATIENCE = 30.0
"""Seconds that a caller has for each part of its message."""

CALLERS = 4
"""Connections that are read at once; others wait."""

BEGINNING = 1024
"""Bytes of a message that are read before it is known whether the rest is: enough to say which message is refused."""

_TURN = 0.2


class Answering(Protocol):
    """Whoever answers packed messages."""

    def answer(self, request: bytes, /) -> bytes:
        """The reply to a message."""

    def refuse(self, size: int, beginning: bytes, /) -> bytes | None:
        """The reply to a message that has too many bytes to be read on; None if it has not."""

    def decline(self, request: bytes, why: str, /) -> bytes:
        """The reply to a message that is not looked at."""


def serve(
    site: Answering,
    socket_path: str | Path,
    stop: threading.Event,
    patience: float = PATIENCE,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer until ``stop`` is set; what is being computed then is finished and sent."""
    path = Path(socket_path)
    listener = _listen(path)
    desk, callers = _Desk(site, stop, patience), threading.Semaphore(CALLERS)
    threads: list[threading.Thread] = []
    ready()
    try:
        while not stop.is_set():
            threads = [thread for thread in threads if thread.is_alive()]
            if not callers.acquire(timeout=_TURN):
                continue
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                callers.release()
                continue
            thread = threading.Thread(target=desk.receive, args=(connection, callers.release), daemon=True)
            threads.append(thread)
            thread.start()
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        listener.close()
        desk.hang_up()
        for thread in threads:
            thread.join()


def stop_on_signals(stop: threading.Event) -> None:
    """Let SIGTERM and SIGINT set ``stop``; call it in the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


class _Desk:
    """Where messages are read at the same time and answered one by one."""

    def __init__(self, site: Answering, stop: threading.Event, patience: float) -> None:
        self.site, self.stop, self.patience = site, stop, patience
        self._turn = threading.Lock()
        self._reading: set[socket.socket] = set()

    def receive(self, connection: socket.socket, done: Callable[[], None]) -> None:
        """One connection: read, wait for the turn, answer."""
        try:
            with connection:
                self._reading.add(connection)
                if self.stop.is_set():
                    return
                length = receive_length(connection, self.patience)
                beginning = receive(connection, min(length, BEGINNING), self.patience)
                reply = self.site.refuse(length, beginning)
                if reply is None:
                    request = beginning + receive(connection, length - len(beginning), self.patience)
                    self._reading.discard(connection)
                    reply = self._answer(request)
                send(connection, reply, self.patience)
        except OSError:
            return  # the caller has gone, or did not finish its message
        finally:
            self._reading.discard(connection)
            done()

    def hang_up(self) -> None:
        """Drop those whose message is not complete."""
        for connection in tuple(self._reading):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, request: bytes) -> bytes:
        with self._turn:
            if self.stop.is_set():
                return self.site.decline(request, "the site is stopping; ask again when it is back")
            return self.site.answer(request)


def _listen(path: Path) -> socket.socket:
    """A listening socket at a path, in place of one that nobody listens at any more."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o750, parents=True)
        path.parent.chmod(0o750)
    if path.parent.stat().st_mode & stat.S_IWOTH:
        raise UsageError(f"anybody may write to {path.parent}, so anybody could take the socket's place; chmod o-w it")
    _check_free(path)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o117)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen at {path}: {error.strerror or error}; give a shorter or another path"
        ) from None
    finally:
        os.umask(before)
    listener.listen()
    listener.settimeout(_TURN)
    return listener


def _check_free(path: Path) -> None:
    """Remove a socket that was left behind; refuse to replace a live one, or anything else."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise UsageError(f"{path} is there and is no socket; give another path or remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise UsageError(f"the socket {path} is there and cannot be tried ({error.strerror}); remove it") from None
    raise UsageError(f"another agent answers at {path}; stop it, or give this one another socket")
