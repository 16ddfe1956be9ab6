"""Where the keys of envelopes lie: ``messages.key`` of each party, and beside it the public keys of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from coterie.deploy.certificates import Pair, with_flower
from coterie.errors import UsageError

if TYPE_CHECKING:
    from coterie.wire.envelope import Channel

PRIVATE, PUBLIC = "messages.key", "messages.pub"
SERVER_PUBLIC = "server.pub"
"""The server's public keys in a site's folder."""

T = TypeVar("T")


def make_message_keys() -> Pair:
    """Make new keys of a party, as the bytes of their files."""
    with with_flower():
        from coterie.wire.envelope import Keys
    keys = Keys.make()
    return Pair(keys.save(), keys.public.save())


def site_public(server: Path, site: str) -> Path:
    """Where the server keeps a site's public keys."""
    return server / "keys" / f"{site}.{PUBLIC}"


def site_channel(folder: Path, name: str) -> Channel:
    """Return the site's end of its channel."""
    with with_flower():
        from coterie.wire.envelope import Channel, Keys, PublicKeys
    return Channel(name, _read(folder / PRIVATE, Keys.load), _read(folder / SERVER_PUBLIC, PublicKeys.load))


def server_channels(folder: Path, sites: Iterable[str]) -> list[Channel]:
    """Return the server's ends of the channels to its sites."""
    with with_flower():
        from coterie.wire.envelope import Channel, Keys, PublicKeys
    own = _read(folder / PRIVATE, Keys.load)
    return [Channel(name, own, _read(site_public(folder, name), PublicKeys.load)) for name in sites]


def _read(path: Path, load: Callable[[bytes], T]) -> T:
    try:
        return load(path.read_bytes())
    except (OSError, ValueError, UsageError) as error:
        raise UsageError(f"cannot read the keys in {path}: {error}") from None
