"""A whole federation on one machine, to try it out: real programs, certificates and keys, data dealt to the sites."""

from __future__ import annotations

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
from coterie.deploy.deployment import POLICY, write_deployment
from coterie.deploy.processes import Program, end_together, running, wait_until
from coterie.deploy.proxy import find_nginx
from coterie.deploy.server import serving
from coterie.deploy.server_folder import ServerFolder, online
from coterie.files import read_toml

DATA = "data.npz"
STARTS = 1.0
"""Seconds between two looks at who is connected, since each starts a program."""


@dataclass(frozen=True)
class Trial:
    """A running federation: the server's folder, and the programs of the server and of each site."""

    place: ServerFolder
    server: Sequence[Program]
    sites: Mapping[str, Mapping[str, Program]]


@contextmanager
def trial(
    data: Federated,
    folder: Path,
    proxy: bool = True,
    configure: Mapping[str, str | int] | None = None,
    functions: Sequence[str] = (),
) -> Iterator[Trial]:
    """Run a federation of these clients during the block, which begins when all sites are connected.

    ``configure`` changes keys of the server's configuration; ``functions`` are the client functions that the policies
    of all sites list.
    """
    server = write_trial(data, folder, proxy)
    for name in data.names if functions else ():
        set_keys(folder / "sites" / name / POLICY, functions=list(functions))
    set_keys(server / FEDERATION, **(configure or {}))
    folders = {name: folder / "sites" / name for name in data.names}
    with ExitStack() as stack:

        def start(part: str) -> dict[str, Program]:
            return {name: stack.enter_context(part_running(each, part)) for name, each in folders.items()}

        agents = start("agent")  # they need no server, and start beside it
        programs = stack.enter_context(serving(server, proxy))
        nodes = start("node")
        sites = {name: {"agent": agents[name], "node": nodes[name]} for name in folders}
        place = ServerFolder.of(server)
        every = [*programs, *agents.values(), *nodes.values()]
        sockets = [load_site(each).socket_path for each in folders.values()]
        stack.callback(end_together, every)
        stack.callback(end_together, list(nodes.values()))  # while there is a server that they can take leave of
        wait_until(lambda: all(path.exists() for path in sockets), every, "the sites' agents are not ready", 180)
        wait_until(lambda: set(online(place).values()) == {"online"}, every, "not all sites are connected", 120, STARTS)
        yield Trial(place, programs, sites)


def write_trial(data: Federated, folder: Path, proxy: bool) -> Path:
    """Write a deployment for these clients, with the examples of each in its folder; return the server's folder."""
    port, inner, *nodes = free_ports(2 + len(data))
    config = write_deployment(folder, data.names, "localhost", port, inner=inner)
    for client, name in enumerate(data.names):
        site = folder / "sites" / name
        x, y = data.train.of(client)
        x_test, y_test = data.test.of(client)
        np.savez(site / DATA, x=x, y=y, x_test=x_test, y_test=y_test)
        address = f"localhost:{port if proxy else inner}"
        set_keys(site / SITE, **_kind(data), data=DATA, server=address, port=nodes[client])
    return config.folder


def _kind(data: Federated) -> dict[str, str | int]:
    """Return the keys of a site's configuration that say what its arrays are, where that could be mistaken."""
    several = {"task": "multilabel" if data.target.is_labels else "regression"}
    return {**(several if data.columns else {}), **({"tokens": True} if data.vocabulary else {})}


def free_ports(count: int) -> list[int]:
    """Return different ports on which nothing listens now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def set_keys(path: Path, **values: str | int | list[str]) -> None:
    """Set keys of a TOML file."""
    table = read_toml(path) | values
    path.write_text(tomli_w.dumps(table))


@contextmanager
def part_running(folder: Path, part: str) -> Iterator[Program]:
    """Run one program of a site, ``agent`` or ``node``, during the block."""
    command = [sys.executable, "-m", "coterie", "federate", "client", "--folder", str(folder), f"--only-{part}"]
    environment = flower.environment(folder / "flower")
    with running(f"{folder.name} {part}", command, environment, folder / "logs" / f"{part}.log", folder) as program:
        yield program


def has_nginx() -> bool:
    """Return whether nginx is installed."""
    return find_nginx() is not None
