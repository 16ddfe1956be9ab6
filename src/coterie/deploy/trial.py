"""A whole federation on one machine, for a try: real programs, certificates and keys, and the data dealt to sites."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomli_w

from coterie.data import Federated
from coterie.deploy import flower
from coterie.deploy.config import FEDERATION, SITE, load_site
from coterie.deploy.deployment import write_deployment
from coterie.deploy.processes import Program, end_together, running, wait_until
from coterie.deploy.server import Place, online, serving
from coterie.files import read_toml

DATA = "data.npz"
PARTS = ("agent", "node")
"""A site's programs."""


@dataclass(frozen=True)
class Trial:
    """A federation that runs here: its server's place, and the programs of the server and of each site."""

    place: Place
    server: Sequence[Program]
    sites: Mapping[str, Mapping[str, Program]]


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens now, all different."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def deal(data: Federated, folder: Path, proxy: bool) -> Path:
    """A deployment for these clients, each site's examples in its own folder; the server's folder."""
    port, inner, *nodes = free_ports(2 + len(data))
    config = write_deployment(folder, data.names, "localhost", port, inner)
    for place, name in enumerate(data.names):
        site = folder / "sites" / name
        x, y = data.train.of(place)
        x_test, y_test = data.test.of(place)
        np.savez(site / DATA, x=x, y=y, x_test=x_test, y_test=y_test)
        change(site / SITE, data=DATA, server=f"localhost:{port if proxy else inner}", port=nodes[place])
    return config.folder


def change(path: Path, **values: str | int) -> None:
    """Set keys of a TOML file."""
    table = read_toml(path) | values
    path.write_text(tomli_w.dumps(table))


@contextmanager
def part_running(folder: Path, part: str) -> Iterator[Program]:
    """One of a site's two programs, ``agent`` or ``node``, while the block runs."""
    command = [sys.executable, "-m", "coterie", "federate", "client", "--folder", str(folder), f"--only-{part}"]
    environment = flower.environment(folder / "flower")
    with running(f"{folder.name} {part}", command, environment, folder / "logs" / f"{part}.log", folder) as program:
        yield program


@contextmanager
def trial(
    data: Federated, folder: Path, proxy: bool = True, configure: Mapping[str, str | int] | None = None
) -> Iterator[Trial]:
    """A federation of these clients while the block runs; it begins when all sites are there.

    ``configure`` changes keys of the server's configuration.
    """
    server = deal(data, folder, proxy)
    change(server / FEDERATION, **(configure or {}))
    with ExitStack() as stack:
        programs = stack.enter_context(serving(server, proxy))
        folders = {name: folder / "sites" / name for name in data.names}
        sites = {
            name: {part: stack.enter_context(part_running(each, part)) for part in PARTS}
            for name, each in folders.items()
        }
        place = Place.of(server)
        every = [*programs, *(program for each in sites.values() for program in each.values())]
        sockets = [load_site(each).socket_path for each in folders.values()]
        stack.callback(end_together, every)
        wait_until(lambda: all(path.exists() for path in sockets), every, "the sites' agents are not ready", 180)
        wait_until(lambda: set(online(place).values()) == {"online"}, every, "not all sites have come", 120)
        yield Trial(place, programs, sites)


def has_nginx() -> bool:
    """Whether the proxy can be had."""
    return shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/sbin:/usr/bin") is not None
