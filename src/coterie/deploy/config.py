"""The configuration of the server and of a site: ``federation.toml`` and ``site.toml``, checked key by key."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from coterie.data import Reading
from coterie.deploy.certificates import check_certificate
from coterie.errors import UsageError, require
from coterie.experiments.settings import reading_options
from coterie.files import read_toml
from coterie.typed import make

FEDERATION = "federation.toml"
SITE = "site.toml"
FIRST_NODE_PORT = 9094
LONGEST_SOCKET = 107
"""Bytes that the system allows in the path of a socket."""

_SITE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")

Config = TypeVar("Config", "ServerConfig", "SiteConfig")

OF_A_SITE = tuple(each.name for each in fields(Reading) if each.name not in ("client", "group"))
"""The options of reading that a site has: it is one client, and its group is not known."""


@dataclass(frozen=True)
class ServerConfig:
    """The configuration of the server: where sites reach it, who they are, and how long a round waits.

    ``inner`` is the loopback port of Flower's SuperLink behind the proxy; ``minimum`` is the number of sites without
    which nothing starts (None: all, or after a while more than half); ``monitor`` is the loopback port of ``/health``
    and ``/metrics`` (None: there are none).
    """

    folder: Path
    host: str
    port: int
    inner: int
    _: KW_ONLY
    sites: tuple[str, ...]
    timeout: float = 600
    minimum: int | None = None
    largest_mb: int = 256
    monitor: int | None = None

    def __post_init__(self) -> None:
        check_host(self.host)
        check_port("port", self.port, 443)
        check_port("inner", self.inner)
        require(self.inner != self.port, "inner", self.inner, f"another port than port, {self.port}")
        check_monitor(self.monitor, self.port, self.inner)
        check_names(self.sites)
        require(0 < self.timeout <= 604800, "timeout", self.timeout, "more than 0 and at most 604800 seconds (a week)")
        require(1 <= self.needed <= len(self.sites), "minimum", self.minimum, f"1 to {len(self.sites)}, the sites")
        require(1 <= self.largest_mb <= 2047, "largest_mb", self.largest_mb, "1 to 2047, Flower's limit of a message")

    @property
    def needed(self) -> int:
        """Return the number of sites without which nothing starts."""
        return len(self.sites) if self.minimum is None else self.minimum

    @property
    def quorum(self) -> int:
        """Return the number of sites with which a run begins when the others do not get ready: more than half."""
        return len(self.sites) // 2 + 1 if self.minimum is None else self.minimum

    @property
    def address(self) -> str:
        """Return the address at which sites reach the server."""
        return f"{self.host}:{self.port}"

    def key_of(self, site: str) -> Path:
        """Return the file of a site's public key."""
        return self.folder / "keys" / f"{site}.pub"


@dataclass(frozen=True)
class SiteConfig:
    """The configuration of a site: its name, where the server is, and how its data are read.

    ``port`` is the loopback port of Flower's SuperNode, ``socket`` the agent's, relative to the folder as is ``data``;
    ``monitor`` is the loopback port at which the node serves ``/health`` and ``/metrics`` (None: there are none).
    ``columns`` are those to learn from, separated by commas; without it, all that have no other use.
    """

    folder: Path
    name: str
    server: str
    port: int = FIRST_NODE_PORT
    _: KW_ONLY
    socket: str = "run/agent.sock"
    monitor: int | None = None
    data: str = ""
    label: str | None = None
    columns: str | None = None
    attribute: str | None = None
    ignore: str | None = None
    categorical: str | None = None
    missing: str | None = None
    drop_missing_labels: bool | None = None
    task: str | None = None
    tokens: bool | None = None
    test: float | None = None
    validation: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        check_names((self.name,))
        host, _, port = self.server.rpartition(":")
        require(bool(host) and port.isdecimal() and port.isascii(), "server", self.server, "host:port")
        check_host(host)
        check_port("the port of server", int(port), 443)
        check_port("port", self.port)
        check_monitor(self.monitor, self.port)
        parts = Path(self.socket).parts
        within = bool(parts) and not Path(self.socket).is_absolute() and ".." not in parts
        require(within, "socket", repr(self.socket), "a path within the site's folder, such as run/agent.sock")
        require(self.seed >= 0, "seed", self.seed, "at least 0")
        Reading(**self.reading())

    @property
    def socket_path(self) -> Path:
        """Return the path of the socket on which the agent listens."""
        return self.folder / self.socket

    def data_file(self) -> Path:
        """Return the file of the site's data; refuse one that cannot be read."""
        if not self.data:
            raise UsageError(f"data is not set in {self.folder / SITE}; name the file that holds this site's examples")
        path = self.folder / self.data
        if not os.access(path, os.R_OK) or not path.is_file():
            raise UsageError(f"data is {path}, which is no file that can be read; correct it in {self.folder / SITE}")
        return path

    def reading(self) -> dict[str, Any]:
        """Return how the data are read: only the options that are given, the reader knows the others."""
        return reading_options(self, OF_A_SITE)


def read_server(folder: str | Path) -> ServerConfig:
    """Read ``federation.toml`` alone, without the files that belong to it."""
    return _load(ServerConfig, Path(folder).resolve(), FEDERATION)


def load_server(folder: str | Path) -> ServerConfig:
    """Read ``federation.toml`` in a server's folder, and check the files that must be there too."""
    config = read_server(folder)
    folder = config.folder
    check_files(folder, public=("ca.crt", "server.crt"), private=("server.key", "messages.key"))
    for site in config.sites:
        for key in (config.key_of(site), folder / "keys" / f"{site}.messages.pub"):
            if not key.is_file():
                raise UsageError(f"{folder / FEDERATION} lists site {site}, but {key} is missing; copy it")
    try:
        check_certificate((folder / "server.crt").read_bytes(), config.host)
    except (UsageError, ValueError) as error:
        raise UsageError(f"{folder / 'server.crt'}: {error}") from None
    return config


def load_site(folder: str | Path) -> SiteConfig:
    """Read ``site.toml`` in a site's folder, and check the files that must be there too."""
    folder = Path(folder).resolve()
    config = _load(SiteConfig, folder, SITE)
    check_files(folder, public=("ca.crt", "policy.toml", "server.pub"), private=("node.key", "messages.key"))
    length = len(os.fsencode(config.socket_path))
    if length > LONGEST_SOCKET:
        raise UsageError(
            f"{folder / SITE}: the socket's path has {length} bytes, {config.socket_path}; the system allows "
            f"{LONGEST_SOCKET}, so move the folder to a shorter path"
        )
    return config


def check_files(folder: Path, public: Iterable[str], private: Iterable[str]) -> None:
    """Refuse a folder in which a file is missing, or in which others can read a private one."""
    for name in (*public, *private):
        if not (folder / name).is_file():
            raise UsageError(f"{folder / name} is missing; copy the whole folder that coterie federate init made")
    for name in private:
        mode = stat.S_IMODE((folder / name).stat().st_mode)
        if mode & 0o077:
            raise UsageError(f"{folder / name} has mode {mode:04o}, others may read it; run chmod 600 {folder / name}")


def check_names(names: tuple[str, ...]) -> None:
    """Refuse names that cannot be those of sites: they become names of files, on any system."""
    require(len(names) > 0, "sites", "empty", "the names of one site or more")
    for name in names:
        require(
            _SITE_NAME.fullmatch(name) is not None,
            "a site's name",
            repr(name),
            "1 to 64 letters, digits, '.', '_' and '-', beginning with a letter, a digit or '_'",
        )
    twice = [name for name, count in Counter(name.lower() for name in names).items() if count > 1]
    if twice:
        raise UsageError(f"site {twice[0]!r} is named twice (capitals do not count); give every site its own name")


def check_host(host: str) -> None:
    """Refuse what is no host name and no IPv4 address that sites could connect to."""
    good = _HOST_NAME.fullmatch(host) is not None
    if good and host.rpartition(".")[2].isdecimal():
        try:
            good = not ipaddress.IPv4Address(host).is_unspecified
        except ValueError:
            good = False
    require(good, "host", repr(host), "the name or the IPv4 address by which sites reach the server")


def check_port(name: str, port: int, *also: int) -> None:
    """Refuse a port that an ordinary user cannot have, apart from those named."""
    limit = "1024 to 65535" + "".join(f", or {extra}" for extra in also)
    require(1024 <= port <= 65535 or port in also, name, port, limit)


def check_monitor(monitor: int | None, *taken: int) -> None:
    """Refuse a port for monitoring that cannot be had, or that another program of the same machine has."""
    if monitor is not None:
        check_port("monitor", monitor)
        require(monitor not in taken, "monitor", monitor, f"another port than {' and '.join(map(str, taken))}")


def _load(kind: type[Config], folder: Path, name: str) -> Config:
    """Read a configuration from a TOML file."""
    path = folder / name
    try:
        table = read_toml(path)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}; make the folder with coterie federate init") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}; correct it") from None
    return make(kind, table, where=str(path), noun="key", folder=folder)
