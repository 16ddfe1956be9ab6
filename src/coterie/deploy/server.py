"""The programs of a federation's server: Flower's SuperLink and nginx, started, watched and stopped together."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from coterie.deploy import flower
from coterie.deploy.delivery import count_try, due, read_ledger, waiting, when_again
from coterie.deploy.logs import rotate
from coterie.deploy.order_lock import ordering
from coterie.deploy.processes import Program, is_listening, running, wait_until
from coterie.deploy.proxy import WORKING, nginx_command
from coterie.deploy.run_control import current_run, is_starting, make_delivery, resume_interrupted, submit
from coterie.deploy.server_folder import ONLINE, ServerFolder, online
from coterie.errors import CoterieError, UsageError
from coterie.files import write_atomically
from coterie.terminal import line

_log = logging.getLogger(__name__)

LOOK = 20.0
"""Seconds between two looks for sites that wait for a model and are back."""

LONGEST_WHY = 300
"""The most letters said of why a site has not received its model."""

TEND = 0.5
"""Seconds between two looks at the programs."""


@contextmanager
def serving(folder: Path, proxy: bool = True) -> Iterator[list[Program]]:
    """Run the server during the block: register the sites, open the proxy, and resume an interrupted run."""
    server = ServerFolder.of(folder)
    config = server.config
    for port in (config.inner, config.port)[: 1 + proxy]:
        if is_listening(port):
            raise UsageError(f"port {port} is taken; stop what listens there, or change it in federation.toml")
    nginx = nginx_command(config.folder) if proxy else None
    server.home.mkdir(mode=0o700, exist_ok=True)
    (server.home / "config.toml").write_text(flower.connection(config.inner, config.folder / "ca.crt"))
    if not server.database.exists():
        server.nodes.unlink(missing_ok=True)
    with ExitStack() as stack:

        def start(name: str, command: Sequence[str], port: int) -> Program:
            log = config.folder / "logs" / f"{name}.log"
            program = stack.enter_context(running(name, command, server.environment, log, config.folder))
            wait_until(lambda: is_listening(port), [program], f"{name} does not answer on port {port}")
            return program

        command = flower.superlink(config.inner, config.folder, server.database)
        with ordering(server.home):  # an order that is given meanwhile would be taken for an interrupted one
            programs = [start("superlink", command, config.inner)]
            register_sites(server)
            programs += [start("nginx", nginx, config.port)] if nginx else []
            resume_interrupted(server)
        yield programs


def register_sites(server: ServerFolder) -> None:
    """Register exactly the sites of the configuration with Flower, by the keys in the folder."""
    known: dict[str, dict[str, str]] = json.loads(server.nodes.read_text()) if server.nodes.exists() else {}
    wanted = {name: server.config.key_of(name).read_text().strip() for name in server.config.sites}
    gone = [name for name, node in known.items() if wanted.get(name) != node["key"]]
    new = [name for name in wanted if name not in known or name in gone]
    lock = threading.Lock()

    def save(name: str, node: dict[str, str] | None) -> None:
        """Write the file after each change, so that it always agrees with Flower's database."""
        with lock:
            known.pop(name, None)
            known.update({} if node is None else {name: node})
            write_atomically(server.nodes, json.dumps(known, indent=2).encode())

    def remove(name: str) -> None:
        server.ask(flower.unregister(known[name]["node"]))
        save(name, None)

    def add(name: str) -> None:
        answer = server.ask(flower.register(server.config.key_of(name), name))
        save(name, {"node": str(answer["node-id"]), "key": wanted[name]})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(remove, gone))
        list(pool.map(add, new))


def tend(programs: Sequence[Program], ended: threading.Event, folder: Path) -> None:
    """Watch the programs of a server until the event, and cut their logs; raise an error if one ends before."""
    logs = [*(program.log for program in programs), *(folder / WORKING / name for name in ("refused.log", "error.log"))]
    while not ended.wait(TEND):
        for program in programs:
            program.check()
        for log in logs:
            rotate(log)


def deliver_to_returned(server: ServerFolder) -> list[str]:
    """Order a delivery to the connected sites that wait for their model and whose pause is over; return their names."""
    ledger, now = read_ledger(server.ledger), time.time()
    absent = due(ledger, now)
    if not absent or is_starting(server) or current_run(server) is not None:
        return []
    connections = online(server)
    back = [name for name in absent if connections.get(name) == ONLINE]
    if back:
        order = replace(make_delivery(server, ledger.get("run")), only=tuple(back))
        count_try(server.ledger, back, now)
        submit(server, order)
    return back


def watch_returns(server: ServerFolder, ended: threading.Event, tell: Callable[[str], None]) -> None:
    """Deliver to sites that come back, until ``ended`` is set; look only while a site waits for its model."""
    said = set[tuple[str, str]]()
    while not ended.wait(LOOK):
        try:
            ledger = read_ledger(server.ledger)
            silent = {name for name in waiting(ledger) if ledger["sites"][name].get("silent")}
            for name in sorted(silent):
                if (name, str(ledger.get("version"))) not in said:
                    said.add((name, str(ledger.get("version"))))
                    entry = ledger["sites"][name]
                    why = line(entry.get("missing"), LONGEST_WHY)
                    tell(f"{line(name)} has not received its model: {why}{when_again(entry)}")
            back = [name for name in deliver_to_returned(server) if name not in silent]
            if back:
                tell(f"{line(', '.join(back))} is back and has not received its model; it is delivered now")
        except (CoterieError, OSError, subprocess.SubprocessError) as error:
            _log.warning("cannot see whether a site is back (%s); trying again", line(error))
