"""Flower's node of a site, which has the network: it carries messages of the server to the site's agent and back.

It has no use for the data or for torch, and does not import them: it starts at once and takes little memory.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.deploy import flower
from coterie.deploy.carried import CARRIED
from coterie.deploy.certificates import write_private
from coterie.deploy.config import SiteConfig
from coterie.deploy.health import node_health
from coterie.deploy.logs import log_to, rotate
from coterie.deploy.monitoring import monitored
from coterie.deploy.processes import Program, is_listening, running, stop_on_signals, wait_until


def run_node(config: SiteConfig) -> None:
    """Carry messages until a signal arrives or Flower's node ends."""
    stop = threading.Event()
    with node(config) as program, log_to(config.folder / "flower" / "node.jsonl"):
        stop_on_signals(stop)
        while not stop.wait(0.5):
            program.check()
            rotate(program.log)


@contextmanager
def node(config: SiteConfig) -> Iterator[Program]:
    """Run Flower's node of a site during the block; it carries messages to the agent and back."""
    folder, home = config.folder, config.folder / "flower"
    secret = home / "executor.secret"
    command = flower.supernode(config.server, config.port, ca=folder / "ca.crt", key=folder / "node.key", secret=secret)
    home.mkdir(mode=0o700, exist_ok=True)
    write_private(secret, secrets.token_bytes(32))
    (home / CARRIED).unlink(missing_ok=True)
    environment = flower.environment(home) | {flower.AGENT: str(config.socket_path)}
    with running("supernode", command, environment, home / "supernode.log", folder) as program:
        wait_until(lambda: is_listening(config.port), [program], f"the SuperNode does not answer on port {config.port}")
        with monitored(config.monitor, lambda: node_health(config, program)):
            yield program
