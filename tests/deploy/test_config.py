"""What the server and a site are told is read back, and whatever is wrong is refused by its name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from coterie.deploy.config import check_host, load_server, load_site
from coterie.deploy.deployment import write_deployment
from coterie.errors import UnknownName, UsageError

SITES = ("aarau", "bern", "St.Gallen_2")


def test_the_server_is_read_back_as_it_was_written(made):
    config = load_server(made / "server")
    assert (config.host, config.port, config.inner, config.sites) == ("fed.example.org", 9443, 8000, SITES)
    assert (config.timeout, config.minimum, config.needed, config.largest_mb) == (600, None, 3, 256)
    assert config.quorum == 2
    assert config.address == "fed.example.org:9443"
    assert config.folder == (made / "server").resolve()


def test_sites_are_read_back_with_ports_that_do_not_meet_on_one_machine(tmp_path):
    write_deployment(tmp_path / "f", ["a", "b", "c", "d"], port=9095, inner=9097)
    sites = [load_site(tmp_path / "f" / "sites" / name) for name in "abcd"]
    assert [(site.name, site.port) for site in sites] == [("a", 9094), ("b", 9096), ("c", 9098), ("d", 9099)]
    assert {site.server for site in sites} == {"localhost:9095"}
    assert sites[0].socket_path == (tmp_path / "f" / "sites" / "a" / "run" / "agent.sock").resolve()
    assert sites[0].reading() == {"validation": 0.0, "seed": 1}


@pytest.mark.parametrize("name", ["", ".hidden", "..", "-x", "a/b", "a b", "a\n", "é", "x" * 65, "a\x00", "a;b", "a'"])
def test_a_name_that_could_be_anything_but_a_file_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=r"a site's name is .*; it must be 1 to 64 letters"):
        write_deployment(tmp_path / "f", ["good", name])


@pytest.mark.parametrize(
    "host", ["", "a b", "a;b", "-a", "a-", "a..b", ".a", "a.", "a_b", "x" * 64, "1.2.3", "256.1.1.1", "0.0.0.0", "::1",
             "a\n", "a:1", "1.2.3.4.5", ".".join(["a" * 60] * 5)]
)  # fmt: skip
def test_a_host_that_is_none_is_refused(host):
    with pytest.raises(UsageError, match=r"host is .*; it must be the name or the IPv4 address"):
        check_host(host)


@pytest.mark.parametrize("host", ["localhost", "a", "A-1.example.org", "192.0.2.1", "1a.example", "x" * 63])
def test_a_host_that_is_one_is_taken(host):
    check_host(host)


BAD_SERVER = {
    "port = 80": "port is 80; it must be 1024 to 65535, or 443",
    "port = 65536": "port is 65536; it must be",
    "port = '9443'": "port is '9443'; it must be a whole number",
    "port = true": "port is True; it must be a whole number",
    "port = 8000": "inner is 8000; it must be another port than port, 8000",
    "inner = 443": "inner is 443; it must be 1024 to 65535",
    "host = 'a b'": "host is 'a b'; it must be",
    "host = 3": "host is 3; it must be a text",
    "sites = []": "sites is empty; it must be the names",
    "sites = ['a', 3]": r"sites is \['a', 3\]; it must be a list of texts",
    "sites = 'bern'": "sites is 'bern'; it must be a list of texts",
    "sites = ['../x']": "a site's name is '../x'; it must be",
    "timeout = 0": "timeout is 0; it must be more than 0",
    "timeout = nan": "timeout is nan; it must be more than 0",
    "timeout = inf": "timeout is inf; it must be",
    "timeout = 'long'": "timeout is 'long'; it must be a number",
    "minimum = 0": "minimum is 0; it must be 1 to 3, the sites",
    "minimum = 4": "minimum is 4; it must be 1 to 3, the sites",
    "largest_mb = 0": "largest_mb is 0; it must be 1 to 2047",
    "largest_mb = 2048": "largest_mb is 2048; it must be 1 to 2047",
}

BAD_SITE = {
    "name = '.x'": "a site's name is '.x'; it must be",
    "server = 'localhost'": "server is localhost; it must be host:port",
    "server = 'localhost:x'": "server is localhost:x; it must be host:port",
    "server = 'localhost:99'": "the port of server is 99; it must be 1024 to 65535, or 443",
    "server = 'https://a:9443'": "host is 'https://a'; it must be",
    "port = 443": "port is 443; it must be 1024 to 65535",
    "socket = '/run/x'": "socket is '/run/x'; it must be a path within the site's folder",
    "socket = '../x'": "socket is '../x'; it must be a path within",
    "socket = ''": "socket is ''; it must be a path within",
    f"socket = '{'x' * 108}'": "the system allows 107, so move the folder to a shorter path",
    "missing = 'zero'": "unknown value of missing 'zero'",
    "task = 'x'": "unknown value of task 'x'",
    "test = 1.5": "test=1.5 must be between 0 and 1",
    "validation = 1": "validation=1 must be between 0 and 1",
    "seed = -1": "seed is -1; it must be at least 0",
    "seed = 1.5": "seed is 1.5; it must be a whole number",
    "ignore = 'label'": "column 'label' is named twice",
    "ignore = ['id']": r"ignore is \['id'\]; it must be a text",
}


@pytest.mark.parametrize("line", BAD_SERVER)
def test_a_bad_value_of_the_server_is_refused_by_file_key_and_limit(own, change, line):
    path = own / "server" / "federation.toml"
    change(path, **dict([line.split(" = ", 1)]))
    with pytest.raises(UsageError, match=f"{path}: {BAD_SERVER[line]}"):
        load_server(own / "server")


@pytest.mark.parametrize("line", BAD_SITE)
def test_a_bad_value_of_a_site_is_refused_by_file_key_and_limit(own, change, line):
    path = own / "sites" / "bern" / "site.toml"
    change(path, **dict([line.split(" = ", 1)]))
    with pytest.raises(UsageError, match=f"{path}: .*{BAD_SITE[line]}"):
        load_site(own / "sites" / "bern")


def test_good_values_are_taken(own, change):
    change(own / "server" / "federation.toml", port="443", timeout="0.5", minimum="3", largest_mb="2047")
    assert load_server(own / "server").port == 443
    place = own / "sites" / "bern"
    change(place / "site.toml", data='"my.csv"', label='"y"', ignore='"id,date"', test="0.3", task='"regression"')
    site = load_site(place)
    expected = {"label": "y", "ignore": ("id", "date"), "test": 0.3, "task": "regression", "validation": 0.0, "seed": 1}
    assert site.reading() == expected


def test_unknown_missing_and_unreadable_is_said_with_the_file(own):
    server, site = own / "server" / "federation.toml", own / "sites" / "bern" / "site.toml"
    text = server.read_text()
    server.write_text(text + "prot = 3\n")
    with pytest.raises(UnknownName, match=f"unknown key in {server} 'prot'; did you mean 'port'"):
        load_server(server.parent)
    server.write_text(text + "folder = '/etc'\n")
    with pytest.raises(UnknownName, match="unknown key"):
        load_server(server.parent)
    server.write_text("host = 'a'\n")
    with pytest.raises(UsageError, match=f"{server} has no port; add port"):
        load_server(server.parent)
    server.write_text("host = \n")
    with pytest.raises(UsageError, match=f"cannot read {server}: Invalid value"):
        load_server(server.parent)
    site.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=f"cannot read {site}: "):
        load_site(site.parent)
    site.unlink()
    with pytest.raises(UsageError, match=f"there is no {site}; make the folder"):
        load_site(site.parent)


def load_all(folder: Path) -> None:
    load_server(folder / "server")
    load_site(folder / "sites" / "bern")


@pytest.mark.parametrize(
    "name",
    ["server/ca.crt", "server/server.key", "server/keys/bern.pub", "sites/bern/policy.toml", "sites/bern/ca.crt"],
)
def test_a_missing_file_is_said(own, name):
    (own / name).unlink()
    with pytest.raises(UsageError, match=rf"{own / name} is missing; copy"):
        load_all(own)


def test_a_damaged_certificate_is_said(own):
    (own / "server" / "server.crt").write_text("nonsense")
    with pytest.raises(UsageError, match=rf"{own / 'server' / 'server.crt'}: "):
        load_server(own / "server")


@pytest.mark.parametrize(
    "name", ["server/server.key", "server/messages.key", "sites/bern/node.key", "sites/bern/messages.key"]
)
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_private_file_that_others_can_read_is_refused(own, name, mode):
    (own / name).chmod(mode)
    with pytest.raises(UsageError, match=rf"has mode {mode:04o}, others may read it; run chmod 600 {own / name}"):
        load_all(own)


def test_the_data_are_looked_for_when_they_are_needed(own, change):
    place = own / "sites" / "bern"
    with pytest.raises(UsageError, match=r"data is not set in .*site.toml; name the file"):
        load_site(place).data_file()
    change(place / "site.toml", data='"bern.npz"')
    with pytest.raises(UsageError, match=r"data is .*bern.npz, which is no file that can be read; correct it"):
        load_site(place).data_file()
    (place / "bern.npz").touch()
    assert load_site(place).data_file() == place.resolve() / "bern.npz"


def test_every_commented_setting_of_a_site_is_one(own):
    path = own / "sites" / "bern" / "site.toml"
    path.write_text(
        "\n".join(line.removeprefix("# ") if " = " in line else line for line in path.read_text().splitlines())
    )
    assert len(tomllib.loads(path.read_text())) == 17
    assert load_site(path.parent).ignore == "id,date"
    assert load_site(path.parent).attribute == "region"
