"""All names, commands and flags of Flower 1.41 in one place, and its SuperLink and SuperNode with shorter pauses.

The server and the sites start these two by running this file as a program. It imports only the standard library at the
top, so that the programs load Flower and little of coterie, above all not torch.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, cast

VERSION = "1.41"
CONNECTION = "coterie"
"""The name of our SuperLink in Flower's configuration."""

RECORD, REQUEST, REPLY = "coterie", "request", "reply"
"""The record of a message, and its fields that hold the packed request and the packed reply."""

ORDER = "order"
"""The field of a run's configuration that names the file of the order."""

SUPERLINK, SUPERNODE = "superlink", "supernode"
"""The programs that this file is, by the first word of its command line."""

AGENT = "COTERIE_AGENT"
"""The environment's variable for the path of the socket at which the site's agent listens."""

START_WAIT = 0.5
"""Seconds between two checks of the server for a run to start; Flower's default is 1."""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of every Flower process: its state under ``home``, no calls to third parties."""
    ours = {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(START_WAIT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    return {**os.environ, **ours}


def superlink(port: int, folder: Path, database: Path) -> list[str]:
    """Return the command of the server's process: on loopback, with the folder's certificates, for registered nodes."""
    ca, certificate, key = (str(folder / name) for name in ("ca.crt", "server.crt", "server.key"))
    program("flower-superlink")  # raises an error if Flower is not installed
    return [
        *(sys.executable, "-P", str(Path(__file__).resolve()), SUPERLINK),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key),
        *("--database", str(database)),
        "--enable-supernode-auth",
    ]


def supernode(server: str, port: int, *, ca: Path, key: Path, secret: Path) -> list[str]:
    """Return the command of a site's process: this file, connected over TLS, with work for holders of the secret.

    ``-P`` keeps this folder out of the program's import path.
    """
    program("flower-supernode")  # raises an error if Flower is not installed
    return [
        *(sys.executable, "-P", str(Path(__file__).resolve()), SUPERNODE),
        *("--superlink", server, "--root-certificates", str(ca)),
        *("--auth-supernode-private-key", str(key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
    ]


def register(public_key: Path, name: str) -> list[str]:
    """Return the command that admits a site's key under its name."""
    return [program("flwr"), "supernode", "register", str(public_key), CONNECTION, "--name", name, "--format", "json"]


def unregister(node: str) -> list[str]:
    """Return the command that removes a site."""
    return [program("flwr"), "supernode", "unregister", node, CONNECTION, "--format", "json"]


def nodes() -> list[str]:
    """Return the command that lists the registered sites."""
    return [program("flwr"), "supernode", "list", CONNECTION, "--format", "json", "--verbose"]


def start_run(app: Path, order: Path) -> list[str]:
    """Return the command that starts the run of an order file."""
    setting = f'{ORDER}="{order}"'
    return [program("flwr"), "run", str(app), CONNECTION, "--run-config", setting, "--format", "json"]


def show_run(number: str) -> list[str]:
    """Return the command that tells how a run stands."""
    return [program("flwr"), "list", CONNECTION, "--run-id", number, "--format", "json"]


def stop_run(number: str) -> list[str]:
    """Return the command that stops a run."""
    return [program("flwr"), "stop", number, CONNECTION, "--format", "json"]


def connection(port: int, ca: Path) -> str:
    """Return Flower's configuration file, which says where the SuperLink is."""
    return (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{ca.resolve()}"\n'
    )


def bundle() -> Mapping[str, str]:
    """Return the files of the app that Flower ships: the server's app by name, and an empty one for the sites."""
    return {"pyproject.toml": PROJECT, "coterie_server.py": SERVER, "coterie_site.py": SITE}


SITE = """\
from flwr.clientapp import ClientApp

app = ClientApp()
"""

SERVER = """\
from coterie.deploy.flower_server import app

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
    """Return the path of one of Flower's programs, beside this Python."""
    found = Path(sys.executable).parent / name
    if not found.exists():
        from coterie.errors import UsageError

        raise UsageError(f"Flower's program {name} is not installed; pip install 'coterie[flower]'")
    return str(found)


SHORTEST, GROWTH = 0.1, 1.3
"""Seconds of the first pause after a message, and the factor between two pauses."""

PART = 0.05
"""Seconds before the first retry to fetch a part of a message; Flower's default is 1."""

COLLECT = 20_000
"""New objects after which garbage is collected; Python's default is 700."""

RETRY = 3.0
"""The most seconds between two tries to reach a server that does not answer; Flower's default is 20."""

HEARTBEAT = "COTERIE_HEARTBEAT"
"""The environment's variable for the seconds within which a site's node says that it is there; Flower's default is 30.

After twice as many without a word the server takes the node for gone, and lets another one with its key in.
"""


class Pauses:
    """Replaces the module ``time`` where the SuperNode waits: short pauses during a run, Flower's own when idle.

    >>> slept = []
    >>> pauses = Pauses(slept.append)
    >>> for asked in (3, 3, 3):
    ...     pauses.sleep(asked)
    >>> pauses.begin_again()
    >>> pauses.sleep(3)
    >>> [round(seconds, 3) for seconds in slept]
    [0.1, 0.13, 0.169, 0.1]
    """

    def __init__(self, wait: Any = time.sleep) -> None:
        self.wait, self.next = wait, SHORTEST

    def begin_again(self) -> None:
        """Begin with the shortest pause, after a message."""
        self.next = SHORTEST

    def sleep(self, seconds: float) -> None:
        """Pause for at most ``seconds``, between two checks for a message."""
        self.wait(min(seconds, self.next))
        self.next = min(seconds, self.next * GROWTH)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def replace(owner: Any, **values: Any) -> None:
    """Replace things of Flower by ours; refuse a Flower that has not got one of them.

    A name that nobody reads would change nothing, and Flower would silently do what it did before.
    """
    for name, value in values.items():
        if name not in vars(owner):
            what = f"Flower {metadata.version('flwr')} has no {owner.__name__}.{name}"
            raise RuntimeError(f"{what}; coterie needs {VERSION}: pip install 'coterie[flower]'")
        setattr(owner, name, value)


def shorten_retries() -> None:
    """Shorten the pauses of Flower, in this process, before it retries to fetch parts of a message."""
    from flwr.supercore.inflatable import inflatable_utils

    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        cast(Any, pull).__kwdefaults__ |= {"initial_backoff": PART, "backoff_cap": 1.0, "max_tries_per_object": None}


def shorten_reconnection() -> None:
    """Have the SuperNode, in this process, find a server that was away soon after it is back."""
    from flwr.supercore import heartbeat
    from flwr.supercore.retry import exponential, http_retry
    from flwr.supernode import fleet_http_connection

    replace(http_retry, MAX_RETRY_DELAY=RETRY)
    replace(heartbeat, exponential=lambda max_delay: exponential(max_delay=min(max_delay, RETRY)))
    if HEARTBEAT in os.environ:
        for module in (heartbeat, fleet_http_connection):
            replace(module, HEARTBEAT_DEFAULT_INTERVAL=float(os.environ[HEARTBEAT]))


def spare_collections() -> None:
    """Have the garbage collection, in this process, leave alone what exists now, and look less often at the rest.

    Flower's programs hold some hundred thousand objects that live as long as they do. With Python's own thresholds the
    server went through all of them several times in every exchange.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT, 20, 20)


def run_superlink() -> None:
    """Run the SuperLink with the flags of the command line, and with less work for every request."""
    from flwr.superlink.cli import flower_superlink

    from coterie.deploy.lighter_superlink import lighten

    lighten()
    spare_collections()
    flower_superlink()


def run_supernode() -> None:
    """Run the SuperNode with the flags of the command line; it takes messages to the agent that the environment names.

    Its loop fetches a message and sends the reply; both steps are ours, so that no app of the server is ever run.
    """
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    from coterie.deploy.carried import CARRIED, Carried
    from coterie.deploy.flower_site import Carrier
    from coterie.wire.unix_socket import call

    counts = Path(os.environ["FLWR_HOME"]) / CARRIED
    pauses = Pauses()
    carrier = Carrier(Carried(partial(call, os.environ[AGENT]), counts), pauses.begin_again)
    replace(start_client_internal, _pull_and_store_message=carrier.pull, _push_messages=carrier.push, time=pauses)
    shorten_retries()
    shorten_reconnection()
    spare_collections()
    end_with(flower_supernode)


def end_with(program: Callable[[], None]) -> None:
    """Run one of Flower's programs, and end this process with it, also while a thread of it still runs.

    After an error that it does not retry, as with an expired certificate, Flower's node logs it and returns; its HTTP
    thread would keep the process alive, which then does nothing, for ever. A signal ends it by SystemExit, as before.
    """
    try:
        program()
    except Exception:
        traceback.print_exc()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Run the program that the first word of the command line names, with the flags after it."""
    which = sys.argv.pop(1)
    {SUPERLINK: run_superlink, SUPERNODE: run_supernode}[which]()


if __name__ == "__main__":
    main()
