"""Flower's node of a site, which has the network: it carries messages of the server to the site's agent and back.

It has no use for the data or for torch, and does not import them: it starts at once and takes little memory.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from coterie.deploy import flower
from coterie.deploy.certificates import write_private
from coterie.deploy.config import SiteConfig
from coterie.deploy.processes import Program, end, is_listening, running, stop_on_signals, wait_until
from coterie.wire.unix_socket import call


def run_node(config: SiteConfig) -> None:
    """Carry messages until a signal arrives or Flower's node ends."""
    stop = threading.Event()
    with node(config) as program:
        stop_on_signals(stop)
        while not stop.wait(0.5):
            program.check()


@contextmanager
def node(config: SiteConfig) -> Iterator[Program]:
    """Run Flower's node of a site during the block, and carry its messages to the agent and back."""
    folder, home, stop = config.folder, config.folder / "flower", threading.Event()
    secret = home / "executor.secret"
    command = flower.supernode(config.server, config.port, ca=folder / "ca.crt", key=folder / "node.key", secret=secret)
    home.mkdir(mode=0o700, exist_ok=True)
    write_private(secret, secrets.token_bytes(32))
    with running("supernode", command, flower.environment(home), home / "supernode.log", folder) as program:
        from coterie.deploy.flower_site import relay  # takes a second, in which the SuperNode starts

        wait_until(lambda: is_listening(config.port), [program], f"the SuperNode does not answer on port {config.port}")

        def carry() -> None:
            """End the node with the relay: a node alone would accept messages that nobody answers."""
            try:
                relay(f"127.0.0.1:{config.port}", secret.read_bytes(), partial(call, str(config.socket_path)), stop)
            finally:
                end(program.process)

        threading.Thread(target=carry, daemon=True).start()
        yield program
        stop.set()
