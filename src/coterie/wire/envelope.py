"""Messages that only their receiver can read and only their sender can have written.

Flower hands an object to any registered site that names its hash, and takes a reply from any site that names the
message it answers. So requests and replies travel in envelopes: encrypted for the receiver (X25519 with a key that is
made for one message, HKDF-SHA256, ChaCha20-Poly1305) and signed by the sender (Ed25519) over everything in them. The
signature also covers what the message is for: the direction, the site's name and, in a reply, the signature of the
request that it answers, which covers the run's name, everything asked, and a key that nobody can guess. So a reply to
another request, under another run or by another site is no reply.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coterie.errors import FederationError, UsageError

MARK = b"coterie1"
"""What an envelope begins with."""

SIGNATURE, KEY, TAG = 64, 32, 16
"""Bytes of a signature, of a public key, and by which a ciphertext is longer than its text."""

HEAD = len(MARK) + SIGNATURE + KEY
"""Bytes that an envelope begins with; no other request has the same, so a reply names it by them."""

OVERHEAD = HEAD + TAG
"""Bytes by which an envelope is larger than what is in it."""

END = b"-----END "


@dataclass(frozen=True)
class PublicKeys:
    """What the world may know of a party: the key that checks its signatures and the key that seals for it."""

    check: Ed25519PublicKey
    seal: X25519PublicKey

    def save(self) -> bytes:
        """Return the two keys as PEM, the one after the other."""
        form_of = form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
        return b"".join(key.public_bytes(*form_of) for key in (self.check, self.seal))

    @classmethod
    def load(cls, content: bytes) -> PublicKeys:
        """Read what ``save`` wrote."""
        check, seal = (form.load_pem_public_key(block) for block in _blocks(content))
        if not isinstance(check, Ed25519PublicKey) or not isinstance(seal, X25519PublicKey):
            raise UsageError("the public keys must be one of Ed25519 and one of X25519; copy the file anew")
        return cls(check, seal)


@dataclass(frozen=True)
class Keys:
    """A party's own keys, for signing and for opening."""

    sign: Ed25519PrivateKey
    open: X25519PrivateKey

    @classmethod
    def make(cls) -> Keys:
        """Make new keys."""
        return cls(Ed25519PrivateKey.generate(), X25519PrivateKey.generate())

    @property
    def public(self) -> PublicKeys:
        """The keys that others need."""
        return PublicKeys(self.sign.public_key(), self.open.public_key())

    def save(self) -> bytes:
        """Return the two keys as PEM, the one after the other."""
        form_of = form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
        return b"".join(key.private_bytes(*form_of) for key in (self.sign, self.open))

    @classmethod
    def load(cls, content: bytes) -> Keys:
        """Read what ``save`` wrote."""
        sign, opens = (form.load_pem_private_key(block, None) for block in _blocks(content))
        if not isinstance(sign, Ed25519PrivateKey) or not isinstance(opens, X25519PrivateKey):
            raise UsageError("the private keys must be one of Ed25519 and one of X25519; copy the file anew")
        return cls(sign, opens)


def _blocks(content: bytes) -> tuple[bytes, bytes]:
    """Return the two PEM blocks of a file."""
    first, end, second = content.partition(b"\n" + END)
    line, _, second = second.partition(b"\n")
    if not end or not second.strip():
        raise UsageError("a file of keys holds two of them in PEM; copy the file anew")
    return first + end + line + b"\n", second


@dataclass(frozen=True)
class Channel:
    """The two ends of a site's exchange with its server; either end has keys of its own and knows the other's.

    >>> server, site = Keys.make(), Keys.make()
    >>> here, there = Channel("bern", server, site.public), Channel("bern", site, server.public)
    >>> request = here.request(b"train")
    >>> there.open_request(request), here.open_reply(there.reply(b"done", to=request), to=request)
    (b'train', b'done')
    """

    site: str
    own: Keys
    other: PublicKeys

    def request(self, content: bytes) -> bytes:
        """Pack what the server asks."""
        return seal(content, self.own, self.other, self._about("request"))

    def open_request(self, envelope: bytes) -> bytes:
        """Return what the server asked; anything that it did not pack for this site is an error."""
        return unseal(envelope, self.own, self.other, self._about("request"))

    def reply(self, content: bytes, to: bytes) -> bytes:
        """Pack what the site answers to an envelope of which it has read the head at least."""
        return seal(content, self.own, self.other, self._about("reply", to))

    def open_reply(self, envelope: bytes, to: bytes) -> bytes:
        """Return what the site answered to an envelope; anything that it did not pack for that one is an error."""
        return unseal(envelope, self.own, self.other, self._about("reply", to))

    def _about(self, direction: str, request: bytes = b"") -> bytes:
        """What a message is for, as 32 bytes: parts of fixed length, so that no two meanings share them."""
        parts = (direction.encode(), self.site.encode(), request[:HEAD])
        return _hash(b"".join(_hash(part) for part in parts))


def seal(content: bytes, sender: Keys, receiver: PublicKeys, about: bytes) -> bytes:
    """Encrypt for the receiver and sign as the sender; ``about`` (32 bytes) must be known to both."""
    once = X25519PrivateKey.generate()
    public = once.public_key().public_bytes_raw()
    secret = _secret(once.exchange(receiver.seal), public, receiver.seal, about)
    hidden = ChaCha20Poly1305(secret).encrypt(bytes(12), content, about)
    signature = sender.sign.sign(_signed(about, public, hidden))
    return b"".join((MARK, signature, public, hidden))


def unseal(envelope: bytes, receiver: Keys, sender: PublicKeys, about: bytes) -> bytes:
    """Return what was sealed, if the sender signed it for this receiver and purpose; else it is an error."""
    if len(envelope) < OVERHEAD or not envelope.startswith(MARK):
        raise FederationError(
            f"a message of {len(envelope)} bytes is in no envelope of coterie's; do the versions match?"
        )
    view = memoryview(envelope)[len(MARK) :]
    signature, public, hidden = (
        bytes(view[:SIGNATURE]),
        bytes(view[SIGNATURE : SIGNATURE + KEY]),
        view[SIGNATURE + KEY :],
    )
    try:
        sender.check.verify(signature, _signed(about, public, hidden))
        shared = receiver.open.exchange(X25519PublicKey.from_public_bytes(public))
        secret = _secret(shared, public, receiver.open.public_key(), about)
        return ChaCha20Poly1305(secret).decrypt(bytes(12), hidden, about)
    except (InvalidSignature, InvalidTag, ValueError):
        raise FederationError(
            "a message is not signed by its sender's key for this exchange; are the keys in both folders a pair?"
        ) from None


def _secret(shared: bytes, public: bytes, receiver: X25519PublicKey, about: bytes) -> bytes:
    """Derive the key of one message; it encrypts nothing else, so its nonce may be zero."""
    info = MARK + public + receiver.public_bytes_raw() + about
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(shared)


def _signed(about: bytes, public: bytes, hidden: bytes | memoryview) -> bytes:
    """What a signature covers."""
    return MARK + about + public + _hash(hidden)


def _hash(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()
