"""Certificates that hold for the right names, under the right authority, for the right time."""

from __future__ import annotations

import builtins
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from coterie.deploy.certificates import Pair, check_certificate, make_authority, make_server, write_private
from coterie.deploy.config import load_server
from coterie.deploy.deployment import renew, write_deployment
from coterie.errors import UsageError

SITES = ("aarau", "bern", "St.Gallen_2")


def shake_hands(server: Path, trusted: Path, name: str) -> None:
    """A TLS connection to a server with these files, by a client that trusts a certificate and expects a name."""
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(server / "server.crt", server / "server.key")
    trusting = ssl.create_default_context(cafile=trusted)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()

    def accept() -> None:
        try:
            accepting.wrap_socket(left, server_side=True).close()
        except OSError:
            left.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        trusting.wrap_socket(right, server_hostname=name).close()
    finally:
        right.close()
        thread.join()


@pytest.mark.parametrize("name", ["fed.example.org", "localhost", "127.0.0.1"])
def test_the_server_is_known_by_its_public_name_and_on_its_own_machine(made, name):
    for site in SITES:
        shake_hands(made / "server", made / "sites" / site / "ca.crt", name)


@pytest.mark.parametrize("name", ["example.org", "www.fed.example.org", "127.0.0.2"])
def test_the_server_is_not_known_by_another_name(made, name):
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made / "server", made / "server" / "ca.crt", name)


def test_another_authority_of_the_same_name_is_not_trusted(made, tmp_path):
    (tmp_path / "ca.crt").write_bytes(make_authority().public)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made / "server", tmp_path / "ca.crt", "localhost")


def test_an_address_is_certified_as_an_address(tmp_path):
    write_deployment(tmp_path / "f", ["a"], "192.0.2.7")
    shake_hands(tmp_path / "f" / "server", tmp_path / "f" / "server" / "ca.crt", "192.0.2.7")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path / "f" / "server", tmp_path / "f" / "server" / "ca.crt", "192.0.2.8")


def test_the_servers_key_cannot_sign_certificates_in_the_authoritys_name(made, tmp_path):
    server = made / "server"
    below = make_server(Pair((server / "server.key").read_bytes(), (server / "server.crt").read_bytes()), "evil.org")
    (tmp_path / "server.key").write_bytes(below.private)
    (tmp_path / "server.crt").write_bytes(below.public + (server / "server.crt").read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
        shake_hands(tmp_path, server / "ca.crt", "evil.org")


@pytest.mark.parametrize("days", [1, 825])
def test_a_certificate_holds_for_the_days_asked_for(days):
    pair = make_server(make_authority(), "localhost", days)
    certificate = x509.load_pem_x509_certificate(pair.public)
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=days, minutes=-1) < left <= timedelta(days=days)
    assert certificate.not_valid_before_utc < datetime.now(UTC) - timedelta(hours=23)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_certificate_never_outlives_its_authority():
    authority = make_authority(10)
    ends = [
        x509.load_pem_x509_certificate(c).not_valid_after_utc
        for c in (authority.public, make_server(authority, "a").public)
    ]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_days_have_limits(days):
    with pytest.raises(UsageError, match=f"days is {days}; it must be 1 to 3650"):
        make_server(make_authority(), "localhost", days)


def test_renewal_changes_the_servers_files_and_sites_trust_it_without_anything_new(own):
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    renew(own, 30)
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"server.crt", "server.key"}
    assert stat.S_IMODE((own / "server" / "server.key").stat().st_mode) == 0o600
    shake_hands(own / "server", own / "sites" / "bern" / "ca.crt", "fed.example.org")


def test_renewal_is_for_the_host_that_the_file_says_now(own, change):
    change(own / "server" / "federation.toml", host='"new.example.org"')
    with pytest.raises(UsageError, match=r"for fed.example.org.*host is new.example.org; run coterie federate renew"):
        load_server(own / "server")
    renew(own)
    assert load_server(own / "server").host == "new.example.org"
    shake_hands(own / "server", own / "server" / "ca.crt", "new.example.org")


def test_renewal_needs_the_very_key_of_the_authority(own):
    write_private(own / "ca" / "ca.key", make_authority().private)
    with pytest.raises(UsageError, match=r"ca.key is not the key of ca.crt"):
        renew(own)
    (own / "ca" / "ca.key").unlink()
    with pytest.raises(UsageError, match=r"ca.key is missing; bring it back"):
        renew(own)


def test_what_has_expired_is_refused(monkeypatch):
    authority = make_authority(40)
    pair = make_server(authority, "localhost", 30)

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=ahead)

    monkeypatch.setattr("coterie.deploy.certificates.datetime", Later)
    ahead = 29
    check_certificate(pair.public, "localhost")
    ahead = 31
    with pytest.raises(UsageError, match=r"the certificate expired on .*; run coterie federate renew"):
        check_certificate(pair.public, "localhost")
    ahead = 41
    with pytest.raises(UsageError, match=r"the authority expired on .*; make a new federation"):
        make_server(authority, "localhost")


def test_a_private_file_is_never_readable_by_others_not_even_while_it_is_written(tmp_path, monkeypatch):
    modes = []
    real = builtins.open

    def watching(file, *rest, **options):
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())
        return real(file, *rest, **options)

    (tmp_path / "key").write_text("old")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setattr(builtins, "open", watching)
    write_private(tmp_path / "key", b"new")
    monkeypatch.undo()
    assert set(modes) == {0o600}
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert (tmp_path / "key").read_bytes() == b"new"


def test_without_the_extra_the_error_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **options):
        if name.startswith("cryptography"):
            raise ModuleNotFoundError("No module", name="cryptography")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"cryptography is not installed; .* pip install 'coterie\[flower\]'"):
        write_deployment(tmp_path / "f", ["a"])
    assert not (tmp_path / "f").exists()
