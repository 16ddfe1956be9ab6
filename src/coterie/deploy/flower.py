"""Flower's names and flags, in one place: what is started, with which options, and what a message is called.

Written for Flower 1.41. Nothing here imports it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from coterie.errors import UsageError

VERSION = "1.41"
CONNECTION = "coterie"
"""What Flower's own configuration calls our SuperLink."""

RECORD, REQUEST, REPLY = "coterie", "request", "reply"
"""The record of a message and the fields that hold the packed bytes there and back."""

ORDER = "order"
"""The field of a run's configuration that names the file in which the server says what is to be done."""

EXECUTOR_WAIT = 0.1
"""Seconds between two looks for work; Flower's own default is 1."""


def environment(home: Path) -> dict[str, str]:
    """The environment of every Flower process: its state under ``home``, no calls to anyone else."""
    ours = {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(EXECUTOR_WAIT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    return {**os.environ, **ours}


def superlink(port: int, folder: Path, database: Path) -> list[str]:
    """The server's process: on loopback only, with the certificates of a folder, for registered nodes only."""
    ca, certificate, key = (str(folder / name) for name in ("ca.crt", "server.crt", "server.key"))
    return [
        program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key),
        *("--database", str(database)),
        "--enable-supernode-auth",
    ]


def supernode(server: str, port: int, ca: Path, key: Path, secret: Path) -> list[str]:
    """A site's process: reaches the server over TLS, proves its key, and leaves the work to whoever has the secret."""
    program("flower-supernode")  # without it there is nothing that ours could start
    return [
        *(sys.executable, str(Path(__file__).with_name("flower_node.py"))),
        *("--superlink", server, "--root-certificates", str(ca)),
        *("--auth-supernode-private-key", str(key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
    ]


def register(public_key: Path, name: str) -> list[str]:
    """Admit a site's key under its name."""
    return [program("flwr"), "supernode", "register", str(public_key), CONNECTION, "--name", name, "--format", "json"]


def unregister(node: str) -> list[str]:
    """No longer admit a site."""
    return [program("flwr"), "supernode", "unregister", node, CONNECTION, "--format", "json"]


def nodes() -> list[str]:
    """List the registered sites."""
    return [program("flwr"), "supernode", "list", CONNECTION, "--format", "json", "--verbose"]


def start_run(app: Path, order: Path) -> list[str]:
    """Start the server's loop on what the order file says."""
    told = f'{ORDER}="{order}"'
    return [program("flwr"), "run", str(app), CONNECTION, "--run-config", told, "--format", "json"]


def stop_run(number: str) -> list[str]:
    """Stop a run."""
    return [program("flwr"), "stop", number, CONNECTION, "--format", "json"]


def connection(port: int, ca: Path) -> str:
    """Flower's own configuration file: where the SuperLink is."""
    return (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{ca.resolve()}"\n'
    )


def bundle() -> Mapping[str, str]:
    """The app that Flower ships: the server's loop by name, and nothing for the sites, which run their own code."""
    return {"pyproject.toml": PROJECT, "coterie_server.py": SERVER, "coterie_site.py": SITE}


SITE = """\
from flwr.clientapp import ClientApp

app = ClientApp()
"""

SERVER = """\
from coterie.deploy.server_app import app

__all__ = ["app"]
"""

PROJECT = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "coterie-federation"
version = "1.0.0"
description = "Carries coterie's messages"
license = "Apache-2.0"
dependencies = ["flwr>={VERSION},<1.42"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "coterie_server:app"
clientapp = "coterie_site:app"

[tool.flwr.app.config]
{ORDER} = ""
"""


def program(name: str) -> str:
    """One of Flower's programs, beside this Python."""
    found = Path(sys.executable).parent / name
    if not found.exists():
        raise UsageError(f"Flower's program {name} is not installed; pip install 'coterie[flower]'")
    return str(found)


SHORTEST, GROWTH, ANSWER = 0.2, 1.3, 0.1
"""Seconds of the first pause after a message, by what it grows, and the longest pause in which an answer is awaited."""

PART = 0.05
"""Seconds of the first pause before a part of a message is looked for again; Flower's own is 1."""

IDLE = 3
"""Pauses of this length and more are those between two looks for a message."""


class Pauses:
    """Stands in for the module ``time`` where the SuperNode waits.

    >>> slept = []
    >>> pauses = Pauses(slept.append)
    >>> for asked in (0.5, 3, 3, 3, 0.5, 3):
    ...     pauses.sleep(asked)
    >>> [round(seconds, 3) for seconds in slept]
    [0.1, 0.2, 0.26, 0.338, 0.1, 0.2]
    """

    def __init__(self, wait: Any = time.sleep) -> None:
        self.wait, self.next = wait, SHORTEST

    def sleep(self, seconds: float) -> None:
        """Pause, for no longer than was asked."""
        if seconds < IDLE:
            self.next = SHORTEST
            self.wait(min(seconds, ANSWER))
            return
        self.wait(min(seconds, self.next))
        self.next = min(seconds, self.next * GROWTH)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def wait_less() -> None:
    """Let Flower look again sooner for parts of a message that are announced and not there yet, in this process."""
    from flwr.supercore.inflatable import inflatable_utils

    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        cast(Any, pull).__kwdefaults__ |= {"initial_backoff": PART, "backoff_cap": 1.0, "max_tries_per_object": None}


def main() -> None:
    """Start the SuperNode with the flags of this command."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    vars(start_client_internal)["time"] = Pauses()
    wait_less()
    flower_supernode()


if __name__ == "__main__":
    main()
