"""The server's programs: Flower's SuperLink on loopback, its door for the sites, and the runs that it is given."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.deploy import flower
from coterie.deploy.config import ServerConfig, load_server
from coterie.deploy.order import Order
from coterie.deploy.processes import Program, answers, running, wait_until
from coterie.deploy.proxy import nginx_command
from coterie.deploy.site_data import SCHEMA
from coterie.deploy.status_file import is_alive, is_over, mark_stopped, read_board
from coterie.errors import FederationError, RunFolderError, UsageError
from coterie.experiments import building
from coterie.experiments.run_folder import CONFIG
from coterie.experiments.settings import Settings
from coterie.experiments.sweep import slug
from coterie.files import write_atomically
from coterie.terminal import line

_log = logging.getLogger(__name__)

PATIENCE = 120.0
"""Seconds that one of Flower's commands may take."""

LEAST_PATIENCE = 300.0
"""Seconds that a run waits for its sites at least, also where a round waits for less."""


@dataclass(frozen=True)
class Place:
    """Where a server's folder keeps what Flower and our runs leave behind."""

    config: ServerConfig

    @classmethod
    def of(cls, folder: Path) -> Place:
        """The place of a server's folder."""
        return cls(load_server(folder))

    @property
    def folder(self) -> Path:
        """The server's folder."""
        return self.config.folder

    @property
    def home(self) -> Path:
        """Flower's own state: who is registered, which runs there were."""
        return self.folder / "flower"

    @property
    def database(self) -> Path:
        """Where Flower keeps who is registered."""
        return self.home / "state.db"

    @property
    def nodes(self) -> Path:
        """Which node of Flower's is which site."""
        return self.home / "nodes.json"

    @property
    def order(self) -> Path:
        """The order that is being carried out, or was last."""
        return self.folder / "order.json"

    @property
    def board(self) -> Path:
        """What goes on."""
        return self.folder / "status.json"

    @property
    def number(self) -> Path:
        """What Flower calls the run."""
        return self.home / "run.json"

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment of Flower's programs."""
        return flower.environment(self.home)

    def ask(self, command: Sequence[str]) -> dict[str, Any]:
        """The JSON that one of Flower's commands prints; a failure is an error in its words."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        start = done.stdout.find("{")
        try:
            told: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
        except ValueError:
            told = {}
        if done.returncode or not told.get("success", False):
            words = line(told.get("error-message") or (done.stderr or done.stdout).strip()[-300:])
            raise FederationError(f"{' '.join(command[1:3])} failed: {words}; is the server of {self.folder} running?")
        return told


@contextmanager
def serving(folder: Path, proxy: bool = True) -> Iterator[list[Program]]:
    """The server while the block runs: sites registered, the door open, and an unfinished run taken up again."""
    config = load_server(folder)
    place = Place(config)
    for port in (config.inner, config.port)[: 1 + proxy]:
        if answers(port):
            raise UsageError(f"port {port} is taken; stop what listens there, or change it in federation.toml")
    door = nginx_command(config.folder) if proxy else None
    place.home.mkdir(mode=0o700, exist_ok=True)
    (place.home / "config.toml").write_text(flower.connection(config.inner, config.folder / "ca.crt"))
    logs = config.folder / "logs"
    if not place.database.exists():
        place.nodes.unlink(missing_ok=True)
    with ExitStack() as stack:

        def start(name: str, command: Sequence[str], port: int) -> Program:
            program = stack.enter_context(
                running(name, command, place.environment, logs / f"{name}.log", config.folder)
            )
            wait_until(lambda: answers(port), [program], f"{name} does not answer on port {port}")
            return program

        command = flower.superlink(config.inner, config.folder, place.database)
        programs = [start("superlink", command, config.inner)]
        register(place)
        programs += [start("nginx", door, config.port)] if door else []
        take_up(place)
        yield programs


def register(place: Place) -> None:
    """Let Flower know exactly the sites of the configuration, by the keys in the folder."""
    path = place.nodes
    known: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    wanted = {name: place.config.key_of(name).read_text().strip() for name in place.config.sites}
    gone = [name for name, node in known.items() if wanted.get(name) != node["key"]]
    new = [name for name in wanted if name not in known or name in gone]

    def dismiss(name: str) -> None:
        place.ask(flower.unregister(known[name]["node"]))
        keep(name, None)

    def admit(name: str) -> None:
        told = place.ask(flower.register(place.config.key_of(name), name))
        keep(name, {"node": str(told["node-id"]), "key": wanted[name]})

    def keep(name: str, node: dict[str, str] | None) -> None:
        """Written after each, so that what Flower knows and what we know it knows do not part."""
        with lock:
            known.pop(name, None)
            known.update({} if node is None else {name: node})
            write_atomically(path, json.dumps(known, indent=2).encode())

    lock = threading.Lock()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(dismiss, gone))
        list(pool.map(admit, new))


def make_order(place: Place, settings: Settings, out: Path | None = None, resume: bool = False) -> Order:
    """What a server is to do for these settings; what cannot be done is refused now and not by the server later."""
    now = going_on(place)
    if now is not None:
        raise UsageError(f"run {line(now['run'], 100)} goes on; wait for it, or stop it with coterie federate stop")
    folder = (out or place.folder / "runs" / f"{slug(settings.algorithm)}-seed-{settings.seed}").resolve()
    if (folder / CONFIG).exists() and not resume:
        raise RunFolderError(f"{folder} already holds a run; continue it with --resume, or give another --out")
    config = place.config
    order = Order(
        settings=settings.table(),
        out=str(folder),
        board=str(place.board),
        sites=config.sites,
        minimum=config.needed,
        timeout=config.timeout,
        patience=max(config.timeout, LEAST_PATIENCE),
        resume=resume,
        quorum=config.quorum,
        schema=str(place.folder / SCHEMA) if (place.folder / SCHEMA).is_file() else None,
    )
    building.build_algorithm(order.experiment())
    return order


def submit(place: Place, order: Order) -> None:
    """Give Flower an order to carry out; it is kept until it is done."""
    app = place.folder / "app"
    app.mkdir(exist_ok=True)
    for name, text in flower.bundle().items():
        (app / name).write_text(text)
    place.board.unlink(missing_ok=True)
    order.save(place.order)
    try:
        told = place.ask(flower.start_run(app, place.order))
    except FederationError:
        if not order.resume:
            place.order.unlink()
        raise
    write_atomically(place.number, json.dumps({"run": str(told["run-id"])}).encode())


def take_up(place: Place) -> None:
    """Go on with a run that the server was carrying out when it ended."""
    told = read_board(place.board)
    if place.order.exists() and not (told is not None and is_over(told)):
        _log.info("going on with the run that was interrupted")
        submit(place, replace(Order.load(place.order), resume=True))


def going_on(place: Place) -> Mapping[str, Any] | None:
    """What the board says of a run that goes on now; None if none does."""
    told = read_board(place.board)
    return told if told is not None and not is_over(told) and is_alive(told) else None


def stop(place: Place) -> None:
    """Stop the run that goes on; its last checkpoint stays, and a server that starts again does not go on with it."""
    if going_on(place) is None:
        raise UsageError("no run goes on; coterie federate status shows what there was")
    place.order.unlink(missing_ok=True)
    place.ask(flower.stop_run(json.loads(place.number.read_text())["run"]))
    wait_until(lambda: going_on(place) is None, [], "the run's process goes on")
    mark_stopped(place.board)


def online(place: Place) -> dict[str, str]:
    """Whether each site is there: online, offline, or registered and never seen."""
    known = json.loads(place.nodes.read_text()) if place.nodes.exists() else {}
    names = {node["node"]: name for name, node in known.items()}
    told = place.ask(flower.nodes())["nodes"]
    return {names[node["node-id"]]: node["status"] for node in told if node["node-id"] in names}
