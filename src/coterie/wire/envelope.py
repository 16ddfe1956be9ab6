"""Seal messages so that only the receiver can read them and only the sender can have written them.

Flower gives an object to any registered site that names its hash, and accepts a reply from any site that names the
message it answers. Requests and replies therefore travel in envelopes: encrypted for the receiver (X25519 with a new
key for each message, HKDF-SHA256, ChaCha20-Poly1305) and signed by the sender (Ed25519) over the whole content. The
signature also covers the purpose of the message: the direction, the name of the site and, in a reply, the signature of
the request that it answers. The latter covers the name of the run, the whole request, and a key that nobody can guess.
A reply to another request, of another run or from another site is therefore refused.
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
"""The first bytes of every envelope."""

SIGNATURE, KEY, TAG = 64, 32, 16
"""Bytes of a signature, of a public key, and of the tag that encryption adds."""

HEAD = len(MARK) + SIGNATURE + KEY
"""Bytes of the head of an envelope. It differs for every request, so a reply refers to its request by the head."""

OVERHEAD = HEAD + TAG
"""Bytes that an envelope adds to its content."""

END = b"-----END "


@dataclass(frozen=True)
class PublicKeys:
    """The public keys of a party: one checks its signatures, the other seals messages for it."""

    check: Ed25519PublicKey
    seal: X25519PublicKey

    def save(self) -> bytes:
        """Return the two keys as PEM, one after the other."""
        encoding = form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
        return b"".join(key.public_bytes(*encoding) for key in (self.check, self.seal))

    @classmethod
    def load(cls, content: bytes) -> PublicKeys:
        """Read what ``save`` wrote."""
        check, seal = (form.load_pem_public_key(block) for block in _blocks(content))
        if not isinstance(check, Ed25519PublicKey) or not isinstance(seal, X25519PublicKey):
            raise UsageError("the public keys must be one of Ed25519 and one of X25519; copy the file again")
        return cls(check, seal)


@dataclass(frozen=True)
class Keys:
    """The private keys of a party: one signs, the other opens what was sealed for it."""

    sign: Ed25519PrivateKey
    open: X25519PrivateKey

    @classmethod
    def make(cls) -> Keys:
        """Make new keys."""
        return cls(Ed25519PrivateKey.generate(), X25519PrivateKey.generate())

    @property
    def public(self) -> PublicKeys:
        """The public keys, for the other parties."""
        return PublicKeys(self.sign.public_key(), self.open.public_key())

    def save(self) -> bytes:
        """Return the two keys as PEM, one after the other."""
        encoding = form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
        return b"".join(key.private_bytes(*encoding) for key in (self.sign, self.open))

    @classmethod
    def load(cls, content: bytes) -> Keys:
        """Read what ``save`` wrote."""
        sign, opens = (form.load_pem_private_key(block, None) for block in _blocks(content))
        if not isinstance(sign, Ed25519PrivateKey) or not isinstance(opens, X25519PrivateKey):
            raise UsageError("the private keys must be one of Ed25519 and one of X25519; copy the file again")
        return cls(sign, opens)


def _blocks(content: bytes) -> tuple[bytes, bytes]:
    """Return the two PEM blocks of a file."""
    first, end, second = content.partition(b"\n" + END)
    line, _, second = second.partition(b"\n")
    if not end or not second.strip():
        raise UsageError("a file of keys must hold two keys as PEM; copy the file again")
    return first + end + line + b"\n", second


@dataclass(frozen=True)
class Channel:
    """One end, the server's or the site's, of the exchange between them: its own keys and the other's public keys.

    >>> server, site = Keys.make(), Keys.make()
    >>> here, there = Channel("bern", server, site.public), Channel("bern", site, server.public)
    >>> request = here.request(b"train")
    >>> there.open_request(request), here.open_reply(there.reply(b"done", to=request), to=request)
    (b'train', b'done')
    """

    site: str
    own: Keys
    other: PublicKeys

    @property
    def overhead(self) -> int:
        """Bytes that an envelope adds to its content."""
        return OVERHEAD

    def request(self, content: bytes) -> bytes:
        """Seal a request to the site."""
        return seal(content, self.own, self.other, self._purpose("request"))

    def open_request(self, envelope: bytes) -> bytes:
        """Open a request; raise an error unless the server sealed it for this site."""
        return unseal(envelope, self.own, self.other, self._purpose("request"))

    def reply(self, content: bytes, to: bytes) -> bytes:
        """Seal the reply to a request; the head of its envelope is enough."""
        return seal(content, self.own, self.other, self._purpose("reply", to))

    def open_reply(self, envelope: bytes, to: bytes) -> bytes:
        """Open a reply; raise an error unless the site sealed it for this request, of which the head is enough."""
        return unseal(envelope, self.own, self.other, self._purpose("reply", to))

    def _purpose(self, direction: str, request: bytes = b"") -> bytes:
        """Return a hash of the purpose of a message; parts are hashed first, so different purposes never collide."""
        parts = (direction.encode(), self.site.encode(), request[:HEAD])
        return _hash(b"".join(_hash(part) for part in parts))


def seal(content: bytes, sender: Keys, receiver: PublicKeys, purpose: bytes) -> bytes:
    """Encrypt for the receiver and sign as the sender; both must know the ``purpose`` (32 bytes)."""
    once = X25519PrivateKey.generate()
    public = once.public_key().public_bytes_raw()
    secret = _secret(once.exchange(receiver.seal), public, receiver.seal, purpose)
    hidden = ChaCha20Poly1305(secret).encrypt(bytes(12), content, purpose)
    signature = sender.sign.sign(_signed(purpose, public, hidden))
    return b"".join((MARK, signature, public, hidden))


def unseal(envelope: bytes, receiver: Keys, sender: PublicKeys, purpose: bytes) -> bytes:
    """Return what was sealed; raise an error unless the sender signed it for this receiver and purpose."""
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
        sender.check.verify(signature, _signed(purpose, public, hidden))
        shared = receiver.open.exchange(X25519PublicKey.from_public_bytes(public))
        secret = _secret(shared, public, receiver.open.public_key(), purpose)
        return ChaCha20Poly1305(secret).decrypt(bytes(12), hidden, purpose)
    except (InvalidSignature, InvalidTag, ValueError):
        raise FederationError(
            "a message is not signed by its sender's key for this exchange; are the keys in both folders a pair?"
        ) from None


def _secret(shared: bytes, public: bytes, receiver: X25519PublicKey, purpose: bytes) -> bytes:
    """Derive the key of one message; it encrypts nothing else, so the nonce may be zero."""
    info = MARK + public + receiver.public_bytes_raw() + purpose
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(shared)


def _signed(purpose: bytes, public: bytes, hidden: bytes | memoryview) -> bytes:
    """Return what a signature covers."""
    return MARK + purpose + public + _hash(hidden)


def _hash(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()
