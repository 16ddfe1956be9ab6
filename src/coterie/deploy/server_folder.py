"""The folder of a federation's server: its files, and what it asks of Flower's programs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.deploy import flower
from coterie.deploy.config import ServerConfig, load_server
from coterie.deploy.delivery import LEDGER
from coterie.deploy.processes import is_listening
from coterie.errors import FederationError
from coterie.terminal import line

COMMAND_SECONDS = 120.0
"""Seconds that one of Flower's commands may take."""

RUNS = "runs"
"""The folder of runs in a server's folder."""

HISTORY = "drift.jsonl"
"""The file in the server's folder to which every look for drift adds a line for each site."""

ONLINE = "online"
"""What Flower calls a node that is connected."""


@dataclass(frozen=True)
class ServerFolder:
    """The folder of a server: its configuration, and the files that Flower and the runs leave there."""

    config: ServerConfig

    @classmethod
    def of(cls, folder: Path) -> ServerFolder:
        """Read the configuration of a server's folder."""
        return cls(load_server(folder))

    @property
    def folder(self) -> Path:
        """The path of the folder."""
        return self.config.folder

    @property
    def home(self) -> Path:
        """The folder of Flower's own state."""
        return self.folder / "flower"

    @property
    def database(self) -> Path:
        """Flower's database of registered nodes and runs."""
        return self.home / "state.db"

    @property
    def nodes(self) -> Path:
        """The file that maps sites to Flower's nodes."""
        return self.home / "nodes.json"

    @property
    def order(self) -> Path:
        """The file of the current order, or the last one."""
        return self.folder / "order.json"

    @property
    def board(self) -> Path:
        """The file with the status of the run."""
        return self.folder / "status.json"

    @property
    def ledger(self) -> Path:
        """The file that says which site has which model."""
        return self.folder / LEDGER

    @property
    def runs(self) -> Path:
        """The folder of the runs' results."""
        return self.folder / RUNS

    @property
    def number(self) -> Path:
        """The file with Flower's number of the run."""
        return self.home / "run.json"

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment of Flower's programs."""
        return flower.environment(self.home)

    def ask(self, command: Sequence[str]) -> dict[str, Any]:
        """Run one of Flower's commands and return the JSON that it prints; raise its message if it fails."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
        start = done.stdout.find("{")
        try:
            answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
        except ValueError:
            answer = {}
        if done.returncode or not answer.get("success", False):
            if not is_listening(self.config.inner):
                raise FederationError(
                    f"the server is not running: nothing listens at 127.0.0.1:{self.config.inner}; start it: coterie "
                    f"federate server --folder {self.folder}"
                )
            words = line(answer.get("error-message") or (done.stderr or done.stdout).strip()[-300:])
            raise FederationError(f"{' '.join(command[1:3])} failed: {words}; is the server of {self.folder} running?")
        return answer


def online(server: ServerFolder) -> dict[str, str]:
    """Return the connection of each site: online, offline, or registered and never seen."""
    known = json.loads(server.nodes.read_text()) if server.nodes.exists() else {}
    names = {node["node"]: name for name, node in known.items()}
    nodes = server.ask(flower.nodes())["nodes"]
    return {names[node["node-id"]]: node["status"] for node in nodes if node["node-id"] in names}
