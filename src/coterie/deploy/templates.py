"""The texts of a generated deployment: configuration with comments, start scripts, systemd units, what to do next."""

from __future__ import annotations

import json
from textwrap import dedent

from coterie.deploy.config import ServerConfig, SiteConfig

HOME = "/var/lib/coterie"
"""Where the units expect the folders; the program itself is expected in /opt/coterie."""

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
    """``federation.toml``; it is written anew when a site is added."""
    minimum = "# minimum = 2" if config.minimum is None else f"minimum = {config.minimum}"
    return dedent(f"""\
        # The server of a federation. Adding a site writes this file anew: values stay, comments of your own do not.
        host = {json.dumps(config.host)}
        port = {config.port}
        # Loopback port of Flower's SuperLink. Never open it to others: who reaches it can run code on this server.
        inner = {config.inner}
        # Only these are let in, each by its key in keys/.
        sites = {json.dumps(config.sites)}
        # Seconds a round waits for answers.
        timeout = {config.timeout}
        # Sites with which a run starts. Unless said: all of them, or after a while more than half.
        {minimum}
        # The largest reply of a site in megabytes: a model has 4 bytes for each parameter.
        largest_mb = {config.largest_mb}
        """)


def site_text(config: SiteConfig) -> str:
    """``site.toml``, with what may be said of the data as comments."""
    return dedent(f"""\
        # A site of a federation. What it allows is in policy.toml.
        name = {json.dumps(config.name)}
        server = {json.dumps(config.server)}
        # Loopback port of Flower's SuperNode; sites on one machine need different ones.
        port = {config.port}
        socket = {json.dumps(config.socket)}
        # This site's examples: .npz, .csv or .parquet; a relative path begins in this folder.
        data = {json.dumps(config.data)}
        # How tables are read; all sites must say the same.
        # label = "label"
        # ignore = "id,date"
        # missing = "error"
        # task = "classification"
        # Shares set aside for testing and validation, drawn by the seed and the site's name.
        # test = 0.2
        # validation = 0.0
        # seed = 1
        """)


def start_text(part: str) -> str:
    """The script that starts the ``server`` or a ``client`` from wherever its folder lies."""
    return dedent(f"""\
        #!/bin/sh
        cd "$(dirname "$0")" || exit 1
        exec coterie federate {part} --folder . "$@"
        """)


def server_unit(config: ServerConfig) -> str:
    """The server under systemd; a port below 1024 needs a capability."""
    rest = f"ProtectHome=yes\nReadWritePaths={HOME}/server\nEnvironment=HOME={HOME}/server\n"
    if config.port < 1024:
        rest += "AmbientCapabilities=CAP_NET_BIND_SERVICE\n"
    return _unit("coterie: server of a federation", "server", "coterie-server", "coterie-server", rest)


def agent_unit() -> str:
    """The agent, which has the data and no network at all: it speaks through its socket alone."""
    rest = f"ProtectHome=read-only\nReadWritePaths={HOME}/site\nPrivateNetwork=yes\nRestrictAddressFamilies=AF_UNIX\n"
    return _unit(
        "coterie: agent of a site", "site", "coterie-agent", "coterie", rest, " --only-agent", "", no_devices="no"
    )


def node_unit() -> str:
    """Flower's SuperNode, which has the network and reaches the data through the agent's socket alone."""
    rest = f"ProtectHome=yes\nReadWritePaths={HOME}/site/flower\nEnvironment=HOME={HOME}/site/flower\n"
    return _unit(
        "coterie: node of a site", "site", "coterie-node", "coterie", rest, " --only-node", " coterie-site.service"
    )


def _unit(
    title: str,
    place: str,
    user: str,
    group: str,
    rest: str,
    options: str = "",
    after: str = "",
    no_devices: str = "yes",
) -> str:
    return _UNIT.format(
        title=title,
        after=f"network-online.target{after}",
        user=user,
        group=group,
        home=f"{HOME}/{place}",
        options=options,
        no_devices=no_devices,
        rest=rest,
    )


def readme_text(config: ServerConfig) -> str:
    """What to copy where, what is secret, and what to do next."""
    return dedent(f"""\
        A federation of {len(config.sites)} sites around {config.address}.

        Copy
          server/        to the server's machine, and nowhere else.
          sites/NAME/    to the machine of site NAME, by a way that keeps it secret; then delete its *.key here.
          ca/            to a place without a network. It signs server certificates, nothing else needs it.

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
          the network, the agent has the data, and the agent's policy is what stands between them.

        Then, on the server, as the user that runs it
          coterie federate run wecfl --folder {HOME}/server

        Later, here
          coterie federate add-site FOLDER NAME    one more; copy server/federation.toml and server/keys/NAME.* anew
          coterie federate renew FOLDER            with ca/ in place; copy server/server.crt and server/server.key anew
        """)
