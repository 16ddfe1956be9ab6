"""A site behind its envelopes: what the server did not seal for this site is not even read, and replies are signed."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.deploy.site import Site
from coterie.errors import FederationError
from coterie.wire.envelope import OVERHEAD, Channel


@dataclass(frozen=True)
class SealedSite:
    """A site and its channel to the server. Requests that cannot be opened are in the audit log like any other."""

    site: Site
    channel: Channel

    def answer(self, request: bytes) -> bytes:
        """Return the sealed reply to a sealed request."""
        try:
            content = self.channel.open_request(request)
        except FederationError as error:
            return self.channel.reply(self.site.turn_away(len(request), error), request)
        return self.channel.reply(self.site.answer(content), request)

    def decline(self, request: bytes, why: str) -> bytes:
        """Return the sealed reply to a message that is not looked at."""
        return self.channel.reply(self.site.decline(request, why), request)

    def refuse(self, size: int, beginning: bytes) -> bytes | None:
        """Return the sealed reply to a message that has too many bytes to be read; None if it has not."""
        reply = self.site.refuse(size - OVERHEAD, beginning)
        return None if reply is None else self.channel.reply(reply, beginning)
