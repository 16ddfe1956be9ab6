"""The web application of a feed: the page, and its changes as server-sent events. It only reads, and only for here.

A page of another origin cannot read it (no CORS), cannot reach it under a name of its own (the host is checked, against
DNS rebinding) and cannot frame it; nothing but the page's own script runs, and it connects to nothing else.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import asdict
from functools import partial
from hashlib import sha256

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from coterie.watching.feed import Feed, Update
from coterie.watching.live_page import live_page

HOSTS = ("127.0.0.1", "localhost")
"""The names under which a browser reaches the page."""

MOST_LISTENERS = 32
"""The most browser windows that are served at once."""

RETRY = 1000
"""Milliseconds after which a browser tries to connect again."""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

_BLOCK = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def application(feed: Feed) -> Starlette:
    """Return the application of a feed."""
    return Starlette(
        routes=[
            Route("/", partial(_page, feed=feed), methods=["GET"]),
            Route("/events", partial(_events, feed=feed), methods=["GET"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False)],
    )


async def _page(request: Request, feed: Feed) -> Response:
    """Answer with the page as it is now."""
    await feed.refresh()
    content = live_page(feed.title, feed.sections, feed.stamp)
    return HTMLResponse(content, headers={**HEADERS, "Content-Security-Policy": content_policy(content)})


async def _events(request: Request, feed: Feed) -> Response:
    """Answer with what changes from the view on that the browser has."""
    if feed.listeners >= MOST_LISTENERS:
        return PlainTextResponse("too many windows show this page; close one\n", 503, HEADERS)
    await feed.refresh()
    stamp = request.headers.get("last-event-id") or request.query_params.get("since", "")
    return StreamingResponse(_stream(feed, stamp), media_type="text/event-stream", headers=HEADERS)


async def _stream(feed: Feed, stamp: str) -> AsyncIterator[str]:
    """Yield the text of an event stream."""
    yield f"retry: {RETRY}\n\n"
    async for update in feed.updates(stamp):
        yield ": nothing new\n\n" if update is None else event(update)


def event(update: Update) -> str:
    """Return an update as a server-sent event; JSON has no line ends, which would end the event."""
    return f"id: {update.stamp}\ndata: {json.dumps(asdict(update))}\n\n"


def content_policy(content: str) -> str:
    """Return the policy of a page: its own scripts and styles by their hashes, and nothing else.

    >>> content_policy("<style>a{}</style>").split("; ")[2]
    "style-src 'sha256-X1RutGBrXCt9KkSaXMK7tHftWiRscFHOhxsS8tv8hBk='"
    """
    found: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _BLOCK.findall(content):
        found[kind].append(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'")
    allowed = [" ".join([f"{kind}-src", *(hashes or ["'none'"])]) for kind, hashes in found.items()]
    fixed = ["img-src data:", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"]
    return "; ".join(["default-src 'none'", *allowed, *fixed])
