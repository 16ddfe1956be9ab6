"""A site's programs: the agent, which has the data and says yes or no, and Flower's node, which reaches the server."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from coterie.deploy import flower
from coterie.deploy.agent import serve, stop_on_signals
from coterie.deploy.agent_socket import call
from coterie.deploy.audit import Audit
from coterie.deploy.certificates import write_private
from coterie.deploy.config import SiteConfig
from coterie.deploy.message_keys import site_channel
from coterie.deploy.policy import load_policy
from coterie.deploy.processes import Program, answers, end, running, wait_until
from coterie.deploy.site import Site
from coterie.deploy.site_data import load_data

if TYPE_CHECKING:
    from coterie.deploy.sealed_site import SealedSite

AUDIT = "audit.jsonl"
Ready = Callable[[Site], None]
"""Is called once a site can be asked."""


def build_site(config: SiteConfig, threads: int = 1) -> SealedSite:
    """The site of a folder: its data read, its policy and its audit log open, its keys at hand."""
    channel = site_channel(config.folder, config.name)
    from coterie.deploy.sealed_site import SealedSite

    policy = load_policy(config.folder / "policy.toml")
    data = load_data(config.data_file(), config.name, config.folder, **config.reading())
    return SealedSite(Site(config.name, data, policy, Audit(config.folder / AUDIT), threads), channel)


def run_agent(config: SiteConfig, threads: int, ready: Ready) -> None:
    """Answer until a signal comes."""
    stop, site = threading.Event(), build_site(config, threads)
    stop_on_signals(stop)
    serve(site, config.socket_path, stop, ready=lambda: ready(site.site))


@contextmanager
def node(config: SiteConfig) -> Iterator[Program]:
    """Flower's node of a site while the block runs, and beside it what carries its messages to the agent and back."""
    folder, home, stop = config.folder, config.folder / "flower", threading.Event()
    secret = home / "executor.secret"
    command = flower.supernode(config.server, config.port, folder / "ca.crt", folder / "node.key", secret)
    from coterie.deploy.flower_relay import relay

    home.mkdir(mode=0o700, exist_ok=True)
    write_private(secret, secrets.token_bytes(32))
    with running("supernode", command, flower.environment(home), home / "supernode.log", folder) as program:
        wait_until(lambda: answers(config.port), [program], f"the SuperNode does not answer on port {config.port}")

        def carry() -> None:
            """Without this the node would take messages that nobody answers, so it does not outlive it."""
            try:
                relay(f"127.0.0.1:{config.port}", secret.read_bytes(), partial(call, str(config.socket_path)), stop)
            finally:
                end(program.process)

        threading.Thread(target=carry, daemon=True).start()
        yield program
        stop.set()


def run_node(config: SiteConfig) -> None:
    """Carry messages until a signal comes or Flower's node ends."""
    stop = threading.Event()
    with node(config) as program:
        stop_on_signals(stop)
        while not stop.wait(0.5):
            program.check()


def run_both(config: SiteConfig, threads: int, ready: Ready) -> None:
    """Agent and node together; the one ends when the other does."""
    stop, site = threading.Event(), build_site(config, threads)
    with node(config) as program:
        stop_on_signals(stop)

        def watch() -> None:
            program.process.wait()
            stop.set()

        threading.Thread(target=watch, daemon=True).start()
        serve(site, config.socket_path, stop, ready=lambda: ready(site.site))
        if program.process.poll() is not None:
            program.check()
