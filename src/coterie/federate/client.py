"""A site's programs: the agent, which has the data and says yes or no, and Flower's node, which reaches the server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from coterie.federate.agent import serve, stop_on_signals
from coterie.federate.audit import Audit
from coterie.federate.config import SiteConfig
from coterie.federate.policy import load_policy
from coterie.federate.processes import running
from coterie.federate.site import Site
from coterie.federate.site_data import load_data
from coterie.runtimes import flower

AUDIT = "audit.jsonl"
Ready = Callable[[Site], None]
"""Is called once a site can be asked."""


def build_site(config: SiteConfig, threads: int = 1) -> Site:
    """The site of a folder: its data read, its policy and its audit log open."""
    policy = load_policy(config.folder / "policy.toml")
    data = load_data(config.data_file(), config.name, config.folder, **config.reading())
    return Site(config.name, data, policy, Audit(config.folder / AUDIT), threads)


def run_agent(config: SiteConfig, threads: int, ready: Ready) -> None:
    """Answer until a signal comes."""
    stop = threading.Event()
    stop_on_signals(stop)
    site = build_site(config, threads)
    serve(site, config.socket_path, stop, ready=lambda: ready(site))


def node_command(config: SiteConfig) -> list[str]:
    """Flower's node of a site."""
    folder = config.folder
    return flower.supernode(config.server, config.port, folder / "ca.crt", folder / "node.key", config.socket_path)


def node_home(config: SiteConfig) -> Path:
    """Where Flower's node keeps its state."""
    home = config.folder / "flower"
    home.mkdir(mode=0o700, exist_ok=True)
    return home


def become_node(config: SiteConfig) -> None:
    """Turn this process into Flower's node."""
    command = node_command(config)
    os.execve(command[0], command, flower.environment(node_home(config)))


def run_both(config: SiteConfig, threads: int, ready: Ready) -> None:
    """Agent and node together; the one ends when the other does."""
    stop = threading.Event()
    stop_on_signals(stop)
    site = build_site(config, threads)
    environment, log = flower.environment(node_home(config)), config.folder / "logs" / "node.log"
    with running("supernode", node_command(config), environment, log, config.folder) as node:

        def watch() -> None:
            node.process.wait()
            stop.set()

        threading.Thread(target=watch, daemon=True).start()
        serve(site, config.socket_path, stop, ready=lambda: ready(site))
        if node.process.poll() is not None:
            node.check()
