"""Write the deployment of a federation: one folder for the server and one for each site, to copy to their machines.

::

    FOLDER/README.txt  schema.json  reading.toml
    FOLDER/ca/ca.key                                   to be kept offline
    FOLDER/server/   federation.toml ca.crt server.crt server.key messages.key messages.pub nginx.conf start.sh
                     *.service
    FOLDER/server/keys/   SITE.pub SITE.messages.pub
    FOLDER/sites/SITE/   site.toml policy.toml ca.crt node.key node.pub messages.key messages.pub server.pub start.sh
                         *.service

The server and every site also have the ``schema.json``, if there is one; ``reading.toml`` is what every ``site.toml``
says about reading tables. The first half of this module writes the files; the second half holds their texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from textwrap import dedent
from typing import Any

import tomli_w

from coterie.data import Schema
from coterie.deploy.certificates import (
    MESSAGES_KEY,
    MESSAGES_PUBLIC,
    SERVER_DAYS,
    SERVER_PUBLIC,
    Pair,
    make_authority,
    make_message_keys,
    make_node_key,
    make_server,
    site_public,
    write_private,
)
from coterie.deploy.config import FEDERATION, FIRST_NODE_PORT, SITE, ServerConfig, SiteConfig, read_server
from coterie.deploy.policy import DEFAULT_POLICY_TEXT
from coterie.deploy.proxy import CONFIGURATION, nginx_text
from coterie.errors import UsageError
from coterie.files import read_toml

SCHEMA, POLICY = "schema.json", "policy.toml"
"""The file that says how tables become arrays, the same at all sites; a run on tables writes one."""

READING = "reading.toml"
"""The file of a deployment with what every ``site.toml`` says about reading tables, also that of a later site."""

READING_EXAMPLES = {
    "label": '"label"',
    "columns": '"age,sex"',
    "attribute": '"region"',
    "ignore": '"id,date"',
    "categorical": '"postcode"',
    "missing": '"error"',
    "drop_missing_labels": "false",
    "task": '"classification"',
}
"""Keys of ``site.toml`` about reading tables, as its comments show them."""

SPLIT_TEXT = """\
# Shares set aside for testing and validation, drawn with the seed and the site's name.
# test = 0.2
# validation = 0.0
# seed = 1"""

HOME = "/var/lib/coterie"
"""Where the systemd units expect the folders; they expect the program in /opt/coterie."""


def write_deployment(
    folder: str | Path,
    sites: Iterable[str],
    host: str = "localhost",
    port: int = 9443,
    *,
    inner: int = 8000,
    days: int = SERVER_DAYS,
    schema: Schema | None = None,
    reading: Mapping[str, str] | None = None,
) -> ServerConfig:
    """Write a new federation into an empty or new folder: authority, certificates, keys, configuration.

    ``schema`` says how the sites' tables become arrays, if they have tables; every site gets it, later ones too.
    ``reading`` are keys of every ``site.toml`` that say how tables are read, such as their label.
    """
    folder = Path(folder).resolve()
    config = ServerConfig(folder=folder / "server", host=host, port=port, inner=inner, sites=tuple(sites))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and not an empty folder; name another, nothing is overwritten")
    shared: dict[str, Any] = dict(reading or {})
    SiteConfig(folder=folder, name=config.sites[0], server=config.address, **shared)  # may refuse it
    authority = make_authority()
    certificate = make_server(authority, host, days)
    (folder / "ca").mkdir(mode=0o700, parents=True)
    write_private(folder / "ca" / "ca.key", authority.private)
    _write_server(config, authority, certificate)
    if reading:
        (folder / READING).write_text(tomli_w.dumps(reading))
    if schema is not None:
        schema.save(folder / SCHEMA)
        schema.save(config.folder / SCHEMA)
    for name in config.sites:
        _write_site(folder, config, name)
    _write_federation(folder, config)
    return config


def add_site(folder: str | Path, name: str) -> SiteConfig:
    """Add a site to a deployment: its folder, its keys, and its public keys in the server's folder."""
    folder = Path(folder).resolve()
    before = read_server(folder / "server")
    config = replace(before, sites=(*before.sites, name))
    if (folder / "sites" / name).exists():
        raise UsageError(f"{folder / 'sites' / name} is there already; move it away or name the site otherwise")
    site = _write_site(folder, config, name)
    _write_federation(folder, config)
    return site


def renew(folder: str | Path, days: int = SERVER_DAYS) -> list[Path]:
    """Renew the certificate and the key of the server with the authority of the folder; sites need nothing new.

    Return the files that must be copied to the server.
    """
    folder = Path(folder).resolve()
    config = read_server(folder / "server")
    key = folder / "ca" / "ca.key"
    if not key.is_file():
        raise UsageError(f"{key} is missing; bring it back from where it is kept, renewing needs it")
    authority = Pair(key.read_bytes(), (config.folder / "ca.crt").read_bytes())
    _write_certificate(config.folder, make_server(authority, config.host, days))
    return [config.folder / name for name in ("server.crt", "server.key")]


def _write_server(config: ServerConfig, authority: Pair, certificate: Pair) -> None:
    """Write the folder of the server, without the sites."""
    server = config.folder
    server.mkdir(mode=0o700)
    (server / "keys").mkdir()
    (server / "ca.crt").write_bytes(authority.public)
    _write_certificate(server, certificate)
    _write_message_keys(server, make_message_keys())
    _write_texts(server, {CONFIGURATION: nginx_text(config), "coterie-server.service": server_unit(config)}, "server")


def _write_site(folder: Path, config: ServerConfig, name: str) -> SiteConfig:
    """Write the folder of a site, and its public keys into the server's folder."""
    own = folder / "sites" / name
    shared = read_toml(folder / READING) if (folder / READING).exists() else {}
    site = SiteConfig(folder=own, name=name, server=config.address, port=_node_port(config, name), **shared)
    key, messages = make_node_key(name), make_message_keys()
    own.mkdir(mode=0o750, parents=True)
    (own / "ca.crt").write_bytes((config.folder / "ca.crt").read_bytes())
    write_private(own / "node.key", key.private)
    (own / "node.pub").write_bytes(key.public)
    _write_message_keys(own, messages)
    (own / SERVER_PUBLIC).write_bytes((config.folder / MESSAGES_PUBLIC).read_bytes())
    if (folder / SCHEMA).exists():
        (own / SCHEMA).write_bytes((folder / SCHEMA).read_bytes())
    texts = {
        SITE: site_text(site, shared),
        POLICY: DEFAULT_POLICY_TEXT,
        "coterie-site.service": agent_unit(),
        "coterie-node.service": node_unit(),
    }
    _write_texts(own, texts, "client")
    config.key_of(name).write_bytes(key.public)
    site_public(config.folder, name).write_bytes(messages.public)
    return site


def _write_federation(folder: Path, config: ServerConfig) -> None:
    """Write the list of sites, last of all, so that it names a site only when its folder is complete."""
    (config.folder / FEDERATION).write_text(federation_text(config))
    (folder / "README.txt").write_text(readme_text(config))


def _write_certificate(server: Path, certificate: Pair) -> None:
    write_private(server / "server.key", certificate.private)
    (server / "server.crt").write_bytes(certificate.public)


def _write_message_keys(folder: Path, keys: Pair) -> None:
    write_private(folder / MESSAGES_KEY, keys.private)
    (folder / MESSAGES_PUBLIC).write_bytes(keys.public)


def _write_texts(folder: Path, texts: dict[str, str], part: str) -> None:
    for name, text in {**texts, "start.sh": start_text(part)}.items():
        (folder / name).write_text(text)
    (folder / "start.sh").chmod(0o755)


def _node_port(config: ServerConfig, name: str) -> int:
    """Return the port of a site's node: they count up from the first, so all sites can run on one machine."""
    free = (port for port in count(FIRST_NODE_PORT) if port not in (config.port, config.inner))
    return next(islice(free, config.sites.index(name), None))


_UNIT = """\
[Unit]
Description={title}
After={after}
Wants={after}

[Service]
User={user}
Group={group}
WorkingDirectory={home}
Environment=PATH=/opt/coterie/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
ExecStart=/bin/sh {home}/start.sh{options}
Restart=on-failure
RestartSec=5
UMask=0027
NoNewPrivileges=yes
ProtectSystem=strict
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateDevices={no_devices}
PrivateTmp=yes
RestrictSUIDSGID=yes
{rest}
[Install]
WantedBy=multi-user.target
"""


def federation_text(config: ServerConfig) -> str:
    """Return ``federation.toml``, which is rewritten when a site is added."""
    minimum = "# minimum = 2" if config.minimum is None else f"minimum = {config.minimum}"
    monitor = "# monitor = 9101" if config.monitor is None else f"monitor = {config.monitor}"
    return dedent(f"""\
        # The server of a federation. Adding a site rewrites this file: values stay, your own comments do not.
        host = {json.dumps(config.host)}
        port = {config.port}
        # Loopback port of Flower's SuperLink. Never open it to others: whoever reaches it can run code on this server.
        inner = {config.inner}
        # Only these sites may connect, each with its key in keys/.
        sites = {json.dumps(config.sites)}
        # Seconds a round waits for answers.
        timeout = {config.timeout}
        # Sites needed to start a run. By default all of them, or after a while more than half.
        {minimum}
        # The largest reply of a site in megabytes: a model takes 4 bytes per parameter.
        largest_mb = {config.largest_mb}
        # Loopback port of /health and Prometheus' /metrics, off unless set; needs pip install 'coterie[metrics]'.
        {monitor}
        """)


def site_text(config: SiteConfig, reading: Mapping[str, str] | None = None) -> str:
    """Return ``site.toml``, with the options of reading that are given, and the others as comments."""
    given = dict(reading or {})
    others = {name: text for name, text in READING_EXAMPLES.items() if name not in given}
    lines = [*tomli_w.dumps(given).splitlines(), *(f"# {name} = {text}" for name, text in others.items())]
    return dedent(f"""\
        # A site of a federation. What it allows is in policy.toml.
        name = {json.dumps(config.name)}
        server = {json.dumps(config.server)}
        # Loopback port of Flower's SuperNode; sites on one machine need different ones.
        port = {config.port}
        socket = {json.dumps(config.socket)}
        # Loopback port at which the node serves /health and /metrics, off unless set; needs 'coterie[metrics]'.
        # monitor = 9102
        # This site's examples: .npz, .csv or .parquet; a relative path begins in this folder.
        data = {json.dumps(config.data)}
        # How tables are read; all sites must use the same values.
        """) + "\n".join([*lines, *SPLIT_TEXT.splitlines(), ""])


def start_text(part: str) -> str:
    """Return the script that starts the ``server`` or a ``client`` from any location of its folder."""
    return dedent(f"""\
        #!/bin/sh
        cd "$(dirname "$0")" || exit 1
        exec coterie federate {part} --folder . "$@"
        """)


def server_unit(config: ServerConfig) -> str:
    """Return the systemd unit of the server; a port below 1024 needs a capability."""
    rest = f"ProtectHome=yes\nReadWritePaths={HOME}/server\nEnvironment=HOME={HOME}/server\n"
    if config.port < 1024:
        rest += "AmbientCapabilities=CAP_NET_BIND_SERVICE\n"
    return _unit("coterie: server of a federation", "server", user="coterie-server", group="coterie-server", rest=rest)


def agent_unit() -> str:
    """Return the unit of the agent, which has the data and no network: it communicates through its socket alone."""
    rest = f"ProtectHome=read-only\nReadWritePaths={HOME}/site\nPrivateNetwork=yes\nRestrictAddressFamilies=AF_UNIX\n"
    return _unit(
        "coterie: agent of a site", "site", user="coterie-agent", rest=rest, options=" --only-agent", no_devices="no"
    )


def node_unit() -> str:
    """Return the unit of Flower's SuperNode, which has the network and reaches the data through the agent alone."""
    rest = f"ProtectHome=yes\nReadWritePaths={HOME}/site/flower\nEnvironment=HOME={HOME}/site/flower\n"
    after = " coterie-site.service"
    return _unit("coterie: node of a site", "site", user="coterie-node", rest=rest, options=" --only-node", after=after)


def _unit(
    title: str,
    folder: str,
    *,
    user: str,
    rest: str,
    group: str = "coterie",
    options: str = "",
    after: str = "",
    no_devices: str = "yes",
) -> str:
    return _UNIT.format(
        title=title,
        after=f"network-online.target{after}",
        user=user,
        group=group,
        home=f"{HOME}/{folder}",
        options=options,
        no_devices=no_devices,
        rest=rest,
    )


def readme_text(config: ServerConfig) -> str:
    """Return the README: what to copy where, what is secret, and what to do next."""
    return dedent(f"""\
        A federation of {len(config.sites)} sites around {config.address}.

        Copy
          server/        to the server's machine, and nowhere else.
          sites/NAME/    to the machine of site NAME, in a way that keeps it secret; then delete its *.key here.
          ca/            to a machine without a network. It signs server certificates, nothing else needs it.

        Secret
          ca/ca.key            with it anyone can pretend to be the server
          server/server.key    the server's; sites never need it
          server/messages.key  the server's: it signs requests and opens replies
          sites/NAME/node.key  the site's; the server needs only its public half, server/keys/NAME.pub
          sites/NAME/messages.key  the site's: it signs replies and opens requests; server/keys/NAME.messages.pub

        Start, after pip install 'coterie[flower]' on every machine
          server:  apt-get install nginx-light; sh start.sh
          site:    set data in site.toml, read policy.toml, then sh start.sh
          Sites connect to {config.address}; nothing connects to a site, so it needs no open port.
          On the server only port {config.port} may be open. Port {config.inner} listens on loopback: whoever can
          log in there can run code here, start runs and register keys. Sites run no code that comes from here.

        Under systemd, with the program in /opt/coterie
          server, in {HOME}/server:
            useradd --system coterie-server
            chown -R coterie-server: {HOME}/server && chmod 700 {HOME}/server
            cp {HOME}/server/*.service /etc/systemd/system/ && systemctl enable --now coterie-server
          site, in {HOME}/site:
            groupadd --system coterie
            useradd --system --gid coterie coterie-agent
            useradd --system --gid coterie coterie-node
            chown -R coterie-agent:coterie {HOME}/site && chmod 750 {HOME}/site
            install -d -m 700 -o coterie-node -g coterie {HOME}/site/flower
            chown coterie-node {HOME}/site/node.key
            cp {HOME}/site/*.service /etc/systemd/system/ && systemctl enable --now coterie-site coterie-node
          The data must be readable by coterie-agent and not by coterie-node or the group coterie: the node has
          the network, the agent has the data, and the agent's policy decides what passes between them.

        Then, on the server, as the user that runs it
          coterie federate run wecfl --folder {HOME}/server
          If the sites have tables and no schema.json, the run begins by agreeing on one. When it is over, every
          site has its model in models/current of its folder, with a score card.

        Later, here
          coterie federate add-site FOLDER NAME    one more; copy server/federation.toml and server/keys/NAME.* again
          coterie federate renew FOLDER            with ca/ in place; copy server/server.crt and server/server.key again
        """)
