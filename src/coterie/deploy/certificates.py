"""Certificates and keys of a federation: its authority, the server's certificate, each site's key, keys of messages.

Sites trust the authority alone, so no public one is needed. The server's certificate and the sites' keys (``node.key``)
secure the connection through Flower; ``messages.key`` of each party signs and opens the messages themselves, and the
public keys of the others lie beside it. ``cryptography`` comes with the extra ``flower`` and is imported where it is
used, so everything else works without it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from coterie.errors import UsageError, require

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

    from coterie.wire.envelope import Channel

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825
WARNING_DAYS = 30
"""Days before the end of a certificate from which on programs warn of it."""

REMEDIES = {
    "server.crt": "renew it where the deployment was written: coterie federate renew FOLDER",
    "ca.crt": "the authority cannot be renewed: write a new deployment with coterie federate init",
}
"""The certificates of a federation, and what to do when one expires."""

LOCAL = ("localhost", "127.0.0.1")
"""The names by which the proxy reaches Flower's server on the same machine."""

MESSAGES_KEY, MESSAGES_PUBLIC = "messages.key", "messages.pub"
SERVER_PUBLIC = "server.pub"
"""The files of a party's own keys of messages, and of the server's public ones in a site's folder."""

T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """A private key and its public counterpart, a certificate or a public key, as the bytes of their files."""

    private: bytes
    public: bytes


@contextmanager
def with_flower() -> Iterator[None]:
    """Import packages of the extra ``flower`` in the block; without it, raise an error that says how to install it."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; a federation needs pip install 'coterie[flower]'") from None


def make_authority(days: int = AUTHORITY_DAYS) -> Pair:
    """Make a new authority, which can sign server certificates and no other authorities."""
    with with_flower():
        from cryptography import x509
    key = _new_key()
    name = _name("coterie authority")
    builder = (
        _builder(key.public_key(), name, name, _period(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _signed(builder, key, key)


def make_server(authority: Pair, host: str, days: int = SERVER_DAYS) -> Pair:
    """Make a new key and certificate of the server, for its public name and for the machine itself.

    The certificate never outlives its authority. To renew it, call this with the same one: sites need nothing new.
    """
    with with_flower():
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID
    signer, root = _opened(authority)
    start, end = _period(days)
    if root.not_valid_after_utc <= datetime.now(UTC):
        raise UsageError(f"the authority expired on {root.not_valid_after_utc:%Y-%m-%d}; make a new federation")
    key = _new_key()
    names = [_general_name(name) for name in dict.fromkeys((host, *LOCAL))]
    builder = (
        _builder(key.public_key(), _name("coterie server"), root.subject, (start, min(end, root.not_valid_after_utc)))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _signed(builder, key, signer)


def make_node_key(name: str) -> Pair:
    """Make a site's key in the formats that Flower reads: OpenSSH, on the curve P-384."""
    with with_flower():
        from cryptography.hazmat.primitives import serialization as form
    key = _new_key()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return Pair(private, public + f" {name}\n".encode())


def make_message_keys() -> Pair:
    """Make new keys that sign and open the messages of a party."""
    with with_flower():
        from coterie.wire.envelope import Keys
    keys = Keys.make()
    return Pair(keys.save(), keys.public.save())


def site_public(server: Path, site: str) -> Path:
    """Return the path of a site's public keys of messages in the server's folder."""
    return server / "keys" / f"{site}.{MESSAGES_PUBLIC}"


def site_channel(folder: Path, name: str) -> Channel:
    """Return the site's end of its channel to the server."""
    with with_flower():
        from coterie.wire.envelope import Channel, Keys, PublicKeys
    own, server = _read_keys(folder / MESSAGES_KEY, Keys.load), _read_keys(folder / SERVER_PUBLIC, PublicKeys.load)
    return Channel(name, own, server)


def server_channels(folder: Path, sites: Iterable[str]) -> list[Channel]:
    """Return the server's ends of the channels to its sites."""
    with with_flower():
        from coterie.wire.envelope import Channel, Keys, PublicKeys
    own = _read_keys(folder / MESSAGES_KEY, Keys.load)
    return [Channel(name, own, _read_keys(site_public(folder, name), PublicKeys.load)) for name in sites]


def _read_keys(path: Path, load: Callable[[bytes], T]) -> T:
    try:
        return load(path.read_bytes())
    except (OSError, ValueError, UsageError) as error:
        raise UsageError(f"cannot read the keys in {path}: {error}") from None


def check_certificate(certificate: bytes, host: str) -> None:
    """Refuse a certificate of the server that has expired or is for another host."""
    with with_flower():
        from cryptography import x509
    found = x509.load_pem_x509_certificate(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if _general_name(host) not in names:
        known = ", ".join(str(name.value) for name in names)
        raise UsageError(f"the certificate is for {known}, but host is {host}; run coterie federate renew")
    if found.not_valid_after_utc <= datetime.now(UTC):
        raise UsageError(f"the certificate expired on {found.not_valid_after_utc:%Y-%m-%d}; run coterie federate renew")


def expires(path: Path) -> datetime:
    """Return when the certificate in a file expires."""
    with with_flower():
        from cryptography import x509
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no certificate that can be read ({error})") from None


def expiry_warnings(folder: Path, now: datetime | None = None) -> list[str]:
    """Return a line for each certificate in a server's or a site's folder that expires within 30 days."""
    now, warnings = now or datetime.now(UTC), []
    for name, remedy in REMEDIES.items():
        if (folder / name).is_file():
            end = expires(folder / name)
            days = (end - now) // timedelta(days=1)
            if days < WARNING_DAYS:
                left = f"expires in {days} days, on" if days >= 0 else "expired on"
                warnings.append(f"{name} {left} {end:%Y-%m-%d}; {remedy}")
    return warnings


def write_private(path: Path, content: bytes) -> None:
    """Write a file that nobody but its owner can read at any moment; replace an older one as a whole."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)


def _new_key() -> EllipticCurvePrivateKey:
    with with_flower():
        from cryptography.hazmat.primitives.asymmetric import ec
    return ec.generate_private_key(ec.SECP384R1())


def _opened(authority: Pair) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    """Return the key and the certificate of the authority; refuse them if they do not belong together."""
    with with_flower():
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    key = load_pem_private_key(authority.private, None)
    root = x509.load_pem_x509_certificate(authority.public)
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != root.public_key():
        raise UsageError("ca.key is not the key of ca.crt; sites would refuse what it signs: use the key made with it")
    return key, root


def _period(days: int) -> tuple[datetime, datetime]:
    """Return the period from a day ago, because clocks differ, to ``days`` from now."""
    require(1 <= days <= AUTHORITY_DAYS, "days", days, f"1 to {AUTHORITY_DAYS}")
    now = datetime.now(UTC).replace(microsecond=0)
    return now - timedelta(days=1), now + timedelta(days=days)


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    public: EllipticCurvePublicKey, subject: x509.Name, issuer: x509.Name, period: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(period[0])
        .not_valid_after(period[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey, signer: EllipticCurvePrivateKey) -> Pair:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form

    certificate = builder.sign(signer, hashes.SHA384()).public_bytes(form.Encoding.PEM)
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return Pair(private, certificate)
