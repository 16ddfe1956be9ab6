"""Flower's node of a site, which has the network: it carries messages of the server to the site's agent and back.

It has no use for the data or for torch, and does not import them: it starts at once and takes little memory.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.deploy import flower
from coterie.deploy.carried import CARRIED
from coterie.deploy.certificates import write_private
from coterie.deploy.config import SiteConfig
from coterie.deploy.health import node_health
from coterie.deploy.logs import log_to, rotate, telling
from coterie.deploy.monitoring import monitored
from coterie.deploy.processes import GRACE, Program, is_listening, running, stop_on_signals, wait_until
from coterie.deploy.reach import Reach
from coterie.errors import FederationError

POLL = 0.5
"""Seconds between two looks at the node."""

AGAIN, LONGEST = 3.0, 30.0
"""Seconds until a node that has ended is started again, the first time and at most; they are doubled each time."""

LOG = Path("flower") / "supernode.log"
"""What Flower's node logs, in the site's folder."""

Tell = Callable[[str], None]
"""Shows a line to the site's operator."""


def run_node(config: SiteConfig, tell: Tell) -> None:
    """Carry messages until a signal arrives."""
    stop = threading.Event()
    stop_on_signals(stop)
    with log_to(config.folder / "flower" / "node.jsonl"):
        keep_node(config, stop, tell)


def keep_node(config: SiteConfig, stop: threading.Event, tell: Tell) -> None:
    """Run Flower's node until ``stop`` is set, and start it again when it ends; one that never listened is an error.

    It ends by itself if the server does not know its key, as while the server starts, and if an earlier node with its
    key was killed and the server has not noticed yet: then also before it listens. It also ends if it refuses the
    server's certificate; that is told once, and tried again like the others.
    """
    pause, has_listened = AGAIN, False
    reach = Reach(config.server, config.folder / LOG, tell)
    while True:
        began = time.monotonic()
        reach.refused = False
        try:
            with node(config, reach) as program:
                has_listened = True
                while program.process.poll() is None and not stop.wait(POLL):
                    reach.look()
                    rotate(program.log)
                why = program.last_words()
        except FederationError as error:
            reach.look()
            if not has_listened and not reach.refused:
                raise
            why = str(error)
        if stop.is_set():
            return
        reach.look()
        pause = AGAIN if time.monotonic() - began > LONGEST else pause
        if not reach.refused:
            told = f"Flower's node has ended; it is started again in {pause:g} s: {why}"
            telling(tell, __name__, logging.WARNING)(told)
        if stop.wait(pause):
            return
        pause = min(2 * pause, LONGEST)


@contextmanager
def node(config: SiteConfig, reach: Reach) -> Iterator[Program]:
    """Run Flower's node of a site during the block; it carries messages to the agent and back."""
    folder, home = config.folder, config.folder / "flower"
    secret = home / "executor.secret"
    command = flower.supernode(config.server, config.port, ca=folder / "ca.crt", key=folder / "node.key", secret=secret)
    home.mkdir(mode=0o700, exist_ok=True)
    write_private(secret, secrets.token_bytes(32))
    (home / CARRIED).unlink(missing_ok=True)
    environment = flower.environment(home) | {flower.AGENT: str(config.socket_path)}
    wait_for_port(config.port)
    with running("supernode", command, environment, folder / LOG, folder) as program:
        wait_until(lambda: is_listening(config.port), [program], f"the SuperNode does not answer on port {config.port}")
        with monitored(config.monitor, lambda: node_health(config, program, reach.problem)):
            yield program


def wait_for_port(port: int, seconds: float = GRACE) -> None:
    """Wait until nothing listens on the port of the node, as an earlier node that is ending; raise an error if not.

    Another program's port would be taken for the node's own, which then cannot listen.
    """
    until = time.monotonic() + seconds
    while is_listening(port):
        if time.monotonic() > until:
            what = "another program listens there, perhaps another site's node"
            raise FederationError(f"port {port} is taken: {what}; set `port` in site.toml to a free one, or end it")
        time.sleep(0.1)
