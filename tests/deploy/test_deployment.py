"""The generated folders: keys that Flower reads, secrets kept, units and scripts that run."""

from __future__ import annotations

import shutil
import stat
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

from coterie.deploy.config import load_server, load_site
from coterie.deploy.deployment import add_site, write_deployment
from coterie.errors import UsageError

SITES = ("aarau", "bern", "St.Gallen_2")
PRIVATE = {"ca.key", "server.key", "node.key", "messages.key"}


def test_flower_reads_the_keys_and_they_belong_together(made):
    for site in SITES:
        place = made / "sites" / site
        files = Namespace(auth_supernode_private_key=str(place / "node.key"), auth_supernode_public_key=None)
        private, public = _try_setup_client_authentication(files)
        assert private.curve.name == "secp384r1"
        assert try_load_public_key(place / "node.pub") == public_key_to_bytes(public)
        assert (made / "server" / "keys" / f"{site}.pub").read_bytes() == (place / "node.pub").read_bytes()


def test_every_site_has_a_key_of_its_own(made):
    keys = [load_ssh_private_key((made / "sites" / site / "node.key").read_bytes(), None) for site in SITES]
    assert len({key.private_numbers().private_value for key in keys}) == len(SITES)


def test_private_files_are_their_owners_alone_and_no_others_are_secret(made):
    files = [path for path in made.rglob("*") if path.is_file()]
    assert {path.name for path in files if b"PRIVATE KEY" in path.read_bytes()} == PRIVATE
    for path in files:
        assert (stat.S_IMODE(path.stat().st_mode) & 0o077 == 0) == (path.name in PRIVATE), path


def test_the_layout_is_as_promised_and_the_authoritys_key_is_in_one_place(made):
    found = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    server = {
        "federation.toml",
        "ca.crt",
        "server.crt",
        "server.key",
        "messages.key",
        "messages.pub",
        "nginx.conf",
        "start.sh",
        "coterie-server.service",
    }
    site = {"site.toml", "policy.toml", "ca.crt", "node.key", "node.pub", "messages.key", "messages.pub", "server.pub"}
    site |= {"coterie-site.service", "coterie-node.service", "start.sh"}
    expected = {"README.txt", "ca/ca.key"} | {f"server/{name}" for name in server}
    expected |= {f"server/keys/{name}.{end}" for name in SITES for end in ("pub", "messages.pub")}
    expected |= {f"sites/{s}/{name}" for s in SITES for name in site}
    assert found == expected


def test_a_later_site_is_added_and_nothing_of_the_others_changes(own, change):
    change(own / "server" / "federation.toml", timeout="5", minimum="2", largest_mb="7")
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    site = add_site(own, "chur")
    assert load_site(own / "sites" / "chur") == site
    assert site.port == 9097
    config = load_server(own / "server")
    assert config.sites == (*SITES, "chur")
    assert (config.timeout, config.minimum, config.largest_mb) == (5, 2, 7)
    assert try_load_public_key(config.key_of("chur"))
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"federation.toml", "README.txt"}


def test_a_site_is_not_added_twice_and_no_key_is_replaced(own, change):
    key = (own / "sites" / "bern" / "node.key").read_bytes()
    with pytest.raises(UsageError, match="site 'bern' is named twice"):
        add_site(own, "Bern")
    change(own / "server" / "federation.toml", sites='["aarau"]')
    with pytest.raises(UsageError, match="bern is there already; move it away"):
        add_site(own, "bern")
    assert (own / "sites" / "bern" / "node.key").read_bytes() == key


def test_a_folder_with_something_in_it_is_never_overwritten(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "note.txt"):
        with pytest.raises(UsageError, match="is there already and not an empty folder; name another"):
            write_deployment(folder, ["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_bad_input_leaves_nothing_behind(tmp_path):
    for bad in ({"sites": ["a", "a"]}, {"sites": ["a"], "host": "no host"}, {"sites": ["a"], "days": 0}):
        with pytest.raises(UsageError):
            write_deployment(tmp_path / "f", **bad)
    assert not (tmp_path / "f").exists()


def test_the_scripts_are_sh_and_start_from_their_own_folder(made, tmp_path):
    (tmp_path / "coterie").write_text('#!/bin/sh\necho "$(pwd)" "$@"\n')
    (tmp_path / "coterie").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for place, part in ((made / "server", "server"), (made / "sites" / "bern", "client")):
        subprocess.run(["sh", "-n", place / "start.sh"], check=True)
        command = ["sh", place / "start.sh", "--only-node"]
        said = subprocess.run(command, env=environment, cwd="/", check=True, capture_output=True, text=True).stdout
        assert said.split() == [str(place.resolve()), "federate", part, "--folder", ".", "--only-node"]


def options(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def test_at_a_site_who_has_the_network_has_not_the_data(made):
    place = made / "sites" / "bern"
    agent, node = options(place / "coterie-site.service"), options(place / "coterie-node.service")
    assert agent["User"] != node["User"]
    assert agent["Group"] == node["Group"]
    assert agent["ExecStart"].endswith("start.sh --only-agent")
    assert node["ExecStart"].endswith("start.sh --only-node")
    assert agent["PrivateNetwork"] == "yes"
    assert node["ReadWritePaths"] == f"{agent['ReadWritePaths']}/flower"
    for unit in (agent, node, options(made / "server" / "coterie-server.service")):
        assert unit["NoNewPrivileges"] == unit["PrivateTmp"] == "yes"
        assert unit["ProtectSystem"] == "strict"
        assert unit["Restart"] == "on-failure"


def test_only_a_low_port_needs_a_capability(made, tmp_path):
    write_deployment(tmp_path / "f", ["a"], port=443)
    low = options(tmp_path / "f" / "server" / "coterie-server.service")
    assert low["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"
    assert "AmbientCapabilities" not in options(made / "server" / "coterie-server.service")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_understands_the_units(made):
    units = [made / "server" / "coterie-server.service", *(made / "sites" / "bern").glob("*.service")]
    assert len(units) == 3
    said = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    complaints = [line for line in (said.stdout + said.stderr).splitlines() if "coterie" in line]
    assert not complaints
