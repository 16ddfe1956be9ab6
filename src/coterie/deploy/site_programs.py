"""What runs at a site: the agent, which has the data and answers requests, alone or beside Flower's node.

The agent listens at a Unix socket and answers packed messages one at a time.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from coterie.data import Federated, Reading, Schema, load_client
from coterie.data.tables.files import open_table
from coterie.deploy.audit import AUDIT, Audit
from coterie.deploy.certificates import site_channel
from coterie.deploy.config import SiteConfig
from coterie.deploy.deployment import SCHEMA
from coterie.deploy.logs import log_to, telling
from coterie.deploy.model_store import MODELS, ModelStore
from coterie.deploy.policy import load_policy
from coterie.deploy.processes import stop_on_signals
from coterie.deploy.site_answers import SealedSite, Site
from coterie.deploy.site_node import Tell, keep_node
from coterie.deploy.site_schema import UnreadTable, in_site_toml
from coterie.errors import CoterieError, DataError, UsageError
from coterie.terminal import TOLD
from coterie.wire.unix_socket import receive, receive_length, send

TIMEOUT = 30.0
"""Seconds that a caller has for each chunk of its message."""

CALLERS = 4
"""Connections that are read at the same time; others wait."""

BEGINNING = 1024
"""Bytes of a message that are read before its size is checked: enough to say which message is refused."""

ARRAYS = ".npz"
"""How the names of files of arrays end, which need no schema."""

_POLL = 0.2
_log = logging.getLogger(__name__)

Ready = Callable[[Site], None]
"""Is called once the site can be asked."""


class Answering(Protocol):
    """Answers packed messages."""

    def answer(self, request: bytes, /) -> bytes:
        """Return the reply to a message."""

    def refuse(self, size: int, beginning: bytes, /) -> bytes | None:
        """Return the reply to a message of ``size`` bytes if it is too large to be read; otherwise None."""

    def decline(self, request: bytes, why: str, /) -> bytes:
        """Return the reply to a message that is not read at all."""


def load_data(
    file: str | Path, name: str, folder: str | Path, tell: Tell = lambda text: None, **options: Any
) -> Federated | UnreadTable:
    """Read a site's ``.npz``, ``.csv`` or ``.parquet`` file as a simulation reads the client ``name`` of a folder.

    ``options`` are those of ``load_own`` (label, attribute, ignore, missing, task, test, validation, seed). Tables are
    read by the ``schema.json`` in ``folder``, beside the configuration of the site; without one a table is not read
    until the sites have agreed on one.
    """
    path, schema = Path(file), Path(folder) / SCHEMA
    if path.suffix.lower() == ARRAYS or schema.is_file():
        return load_client(path, name, schema=Schema.load(schema) if schema.is_file() else None, **options)
    table = UnreadTable(Path(folder), path, name, options, tell)
    table.check()
    return table


def with_columns(file: Path, columns: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of reading with all columns of a table ignored but ``columns`` and those with another use."""
    if columns is None or file.suffix.lower() == ARRAYS:
        return options
    reading, named = Reading.from_options(options), [name.strip() for name in columns.split(",") if name.strip()]
    there = open_table(file).columns
    for name in named:
        if name not in there:
            raise UsageError(f"columns in site.toml names {name!r}, which {file} has not; it has {', '.join(there)}")
    used = (*named, *reading.roles)
    return {**options, "ignore": ",".join(name for name in there if name not in used)}


def build_site(config: SiteConfig, threads: int = 1, tell: Tell = lambda text: None) -> SealedSite:
    """Build the site of a folder: read its data, its policy and its keys, and open its audit log."""
    channel = site_channel(config.folder, config.name)
    policy = load_policy(config.folder / "policy.toml")
    file = config.data_file()
    options = with_columns(file, config.columns, config.reading())
    try:
        data = load_data(file, config.name, config.folder, tell, **options)
    except DataError as error:
        raise DataError(in_site_toml(str(error))) from None
    store = ModelStore(config.folder / MODELS, policy.most_versions)
    audit = Audit(config.folder / AUDIT)
    return SealedSite(Site(config.name, data, policy, audit, threads=threads, store=store, tell=tell), channel)


def run_agent(config: SiteConfig, threads: int, ready: Ready, tell: Tell) -> None:
    """Answer messages until a signal arrives; ``tell`` shows what the operator should know."""
    stop, site = threading.Event(), build_site(config, threads, telling(tell, __name__))
    stop_on_signals(stop)
    with log_to(config.folder / "logs" / "agent.jsonl"):
        serve(site, config.socket_path, stop, ready=partial(_begin, ready, site.site))


def run_both(config: SiteConfig, threads: int, ready: Ready, tell: Tell) -> None:
    """Run agent and node together until a signal arrives, or the node cannot be started."""
    stop, site = threading.Event(), build_site(config, threads, telling(tell, __name__))
    stop_on_signals(stop)
    failed: list[Exception] = []

    def carry() -> None:
        try:
            keep_node(config, stop, tell)
        except (CoterieError, OSError) as error:
            failed.append(error)
        stop.set()

    with log_to(config.folder / "logs" / "site.jsonl"):
        carrying = threading.Thread(target=carry)
        carrying.start()
        try:
            serve(site, config.socket_path, stop, ready=partial(_begin, ready, site.site))
        finally:
            stop.set()
            carrying.join()
    if failed:
        raise failed[0]


def _begin(ready: Ready, site: Site) -> None:
    """Log that a site can be asked, and tell whoever waits for it."""
    _log.info("site %s is ready: %s", site.name, site.what_it_has, extra={TOLD: True})
    ready(site)


def serve(
    site: Answering,
    socket_path: str | Path,
    stop: threading.Event,
    *,
    timeout: float = TIMEOUT,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer messages at a Unix socket until ``stop`` is set; finish and send the reply in progress first."""
    path = Path(socket_path)
    listener = _listen(path)
    connections, callers = _Connections(site, stop, timeout), threading.Semaphore(CALLERS)
    threads: list[threading.Thread] = []
    ready()
    try:
        while not stop.is_set():
            threads = [thread for thread in threads if thread.is_alive()]
            connection = _accept(listener, callers)
            if connection is not None:
                thread = threading.Thread(target=connections.handle, args=(connection, callers.release), daemon=True)
                threads.append(thread)
                thread.start()
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        listener.close()
        connections.drop_incomplete()
        for thread in threads:
            thread.join()


def _accept(listener: socket.socket, callers: threading.Semaphore) -> socket.socket | None:
    """Return the next connection, which takes one of the ``callers``; None if none can be accepted soon."""
    if not callers.acquire(timeout=_POLL):
        return None
    try:
        return listener.accept()[0]
    except TimeoutError:
        callers.release()
        return None


class _Connections:
    """Read messages of several connections at the same time, and answer them one at a time."""

    def __init__(self, site: Answering, stop: threading.Event, timeout: float) -> None:
        self.site, self.stop, self.timeout = site, stop, timeout
        self._answering = threading.Lock()
        self._reading: set[socket.socket] = set()

    def handle(self, connection: socket.socket, done: Callable[[], None]) -> None:
        """Read the message of one connection, wait for its turn, and send the reply."""
        try:
            with connection:
                self._reading.add(connection)
                if self.stop.is_set():
                    return
                length = receive_length(connection, self.timeout)
                beginning = receive(connection, min(length, BEGINNING), self.timeout)
                reply = self.site.refuse(length, beginning)
                if reply is None:
                    request = beginning + receive(connection, length - len(beginning), self.timeout)
                    self._reading.discard(connection)
                    reply = self._answer(request)
                send(connection, reply, self.timeout)
        except OSError:
            return  # the caller hung up, or did not finish its message
        finally:
            self._reading.discard(connection)
            done()

    def drop_incomplete(self) -> None:
        """Close the connections of which the message is not complete."""
        for connection in tuple(self._reading):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, request: bytes) -> bytes:
        with self._answering:
            if self.stop.is_set():
                return self.site.decline(request, "the site is stopping; ask again when it is back")
            return self.site.answer(request)


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path; replace one that nobody listens at any more."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o750, parents=True)
        path.parent.chmod(0o750)
    if path.parent.stat().st_mode & stat.S_IWOTH:
        raise UsageError(f"anybody may write to {path.parent}, so anybody could replace the socket; chmod o-w it")
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
    listener.settimeout(_POLL)
    return listener


def _check_free(path: Path) -> None:
    """Remove a socket that was left behind; refuse to replace a live one, or a file that is not a socket."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise UsageError(f"{path} exists and is no socket; give another path or remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise UsageError(f"the socket {path} exists and cannot be tried ({error.strerror}); remove it") from None
    raise UsageError(f"another agent answers at {path}; stop it, or give this one another socket")
