"""The generated deployment: one folder for the server and one for each site, ready to be copied to their machines.

::

    FOLDER/README.txt  schema.json
    FOLDER/ca/ca.key                                   to be kept offline
    FOLDER/server/   federation.toml ca.crt server.crt server.key messages.key messages.pub nginx.conf start.sh
                     *.service
    FOLDER/server/keys/   SITE.pub SITE.messages.pub
    FOLDER/sites/SITE/   site.toml policy.toml ca.crt node.key node.pub messages.key messages.pub server.pub start.sh
                         *.service

The server and every site also have the ``schema.json``, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from coterie.data import Schema
from coterie.deploy.certificates import SERVER_DAYS, Pair, make_authority, make_node_key, make_server, write_private
from coterie.deploy.config import (
    FEDERATION,
    FIRST_NODE_PORT,
    SITE,
    ServerConfig,
    SiteConfig,
    load_server,
    load_site,
    read_server,
)
from coterie.deploy.message_keys import PRIVATE, PUBLIC, SERVER_PUBLIC, make_message_keys, site_public
from coterie.deploy.policy import DEFAULT_POLICY_TEXT
from coterie.deploy.proxy import CONFIGURATION, nginx_text
from coterie.deploy.site_data import SCHEMA
from coterie.deploy.templates import (
    agent_unit,
    federation_text,
    node_unit,
    readme_text,
    server_unit,
    site_text,
    start_text,
)
from coterie.errors import UsageError

__all__ = ["ServerConfig", "SiteConfig", "add_site", "load_server", "load_site", "renew", "write_deployment"]


def write_deployment(
    folder: str | Path,
    sites: Iterable[str],
    host: str = "localhost",
    port: int = 9443,
    inner: int = 8000,
    days: int = SERVER_DAYS,
    schema: Schema | None = None,
) -> ServerConfig:
    """A new federation in a folder that is empty or not there: authority, certificates, keys, configuration.

    ``schema`` says how the sites' tables become arrays, where they have tables; every site gets it, later ones too.
    """
    folder = Path(folder).resolve()
    server = folder / "server"
    config = ServerConfig(folder=server, host=host, port=port, inner=inner, sites=tuple(sites))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and not an empty folder; name another, nothing is overwritten")
    authority = make_authority()
    certificate = make_server(authority, host, days)
    (folder / "ca").mkdir(mode=0o700, parents=True)
    server.mkdir(mode=0o700)
    (server / "keys").mkdir()
    write_private(folder / "ca" / "ca.key", authority.private)
    (server / "ca.crt").write_bytes(authority.public)
    _write_certificate(server, certificate)
    _write_message_keys(server, make_message_keys())
    _write_texts(server, {CONFIGURATION: nginx_text(config), "coterie-server.service": server_unit(config)}, "server")
    if schema is not None:
        schema.save(folder / SCHEMA)
        schema.save(server / SCHEMA)
    for name in config.sites:
        _write_site(folder, config, name)
    _write_federation(folder, config)
    return config


def add_site(folder: str | Path, name: str) -> SiteConfig:
    """A later site: its folder, its key, and its public key in the server's folder."""
    folder = Path(folder).resolve()
    before = read_server(folder / "server")
    config = replace(before, sites=(*before.sites, name))
    if (folder / "sites" / name).exists():
        raise UsageError(f"{folder / 'sites' / name} is there already; move it away or name the site otherwise")
    site = _write_site(folder, config, name)
    _write_federation(folder, config)
    return site


def renew(folder: str | Path, days: int = SERVER_DAYS) -> None:
    """A new certificate and key of the server, from the authority of the folder; sites need nothing new."""
    folder = Path(folder).resolve()
    config = read_server(folder / "server")
    key = folder / "ca" / "ca.key"
    if not key.is_file():
        raise UsageError(f"{key} is missing; bring it back from where it is kept, renewing needs it")
    authority = Pair(key.read_bytes(), (config.folder / "ca.crt").read_bytes())
    _write_certificate(config.folder, make_server(authority, config.host, days))


def _write_site(folder: Path, config: ServerConfig, name: str) -> SiteConfig:
    place = folder / "sites" / name
    site = SiteConfig(place, name, config.address, _node_port(config, name))
    key, messages = make_node_key(name), make_message_keys()
    place.mkdir(mode=0o750, parents=True)
    (place / "ca.crt").write_bytes((config.folder / "ca.crt").read_bytes())
    write_private(place / "node.key", key.private)
    (place / "node.pub").write_bytes(key.public)
    _write_message_keys(place, messages)
    (place / SERVER_PUBLIC).write_bytes((config.folder / PUBLIC).read_bytes())
    if (folder / SCHEMA).exists():
        (place / SCHEMA).write_bytes((folder / SCHEMA).read_bytes())
    texts = {
        SITE: site_text(site),
        "policy.toml": DEFAULT_POLICY_TEXT,
        "coterie-site.service": agent_unit(),
        "coterie-node.service": node_unit(),
    }
    _write_texts(place, texts, "client")
    config.key_of(name).write_bytes(key.public)
    site_public(config.folder, name).write_bytes(messages.public)
    return site


def _write_federation(folder: Path, config: ServerConfig) -> None:
    """Last of all, so that a site is listed only when it is complete."""
    (config.folder / FEDERATION).write_text(federation_text(config))
    (folder / "README.txt").write_text(readme_text(config))


def _write_certificate(server: Path, certificate: Pair) -> None:
    write_private(server / "server.key", certificate.private)
    (server / "server.crt").write_bytes(certificate.public)


def _write_message_keys(folder: Path, keys: Pair) -> None:
    write_private(folder / PRIVATE, keys.private)
    (folder / PUBLIC).write_bytes(keys.public)


def _write_texts(folder: Path, texts: dict[str, str], part: str) -> None:
    for name, text in {**texts, "start.sh": start_text(part)}.items():
        (folder / name).write_text(text)
    (folder / "start.sh").chmod(0o755)


def _node_port(config: ServerConfig, name: str) -> int:
    """The ports count up from the first, so that all can be tried on one machine beside the server."""
    free = (port for port in count(FIRST_NODE_PORT) if port not in (config.port, config.inner))
    return next(islice(free, config.sites.index(name), None))
