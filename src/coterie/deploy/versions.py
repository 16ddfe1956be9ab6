"""Which versions of coterie work together: those with the same first two numbers."""

from __future__ import annotations

import re

from coterie.terminal import line

_NUMBERS = re.compile(r"(\d+)\.(\d+)(?:[^\d].*)?", re.DOTALL)
LONGEST = 20
"""The most letters that are shown of a version."""


def series(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version; None if it has none.

    >>> series("1.4.3"), series("1.5rc1"), series("new")
    ((1, 4), (1, 5), None)
    """
    found = _NUMBERS.fullmatch(version[: 2 * LONGEST])
    return None if found is None else (int(found[1]), int(found[2]))


def mismatch(site: str, server: str) -> str | None:
    """Return why a site of one version cannot work with a server of another, and what to do; None if it can.

    Messages do not change within a series, so 1.4.3 works with 1.4.0 and 1.5.0 does not.

    >>> mismatch("1.4.3", "1.4.0")
    >>> mismatch("1.5.0", "1.4.5")
    "has coterie 1.5.0 where the server has 1.4.5; install 1.4.* at the site: pip install 'coterie[flower]==1.4.*'"
    """
    ours = series(server)
    if ours is not None and series(site) == ours:
        return None
    wanted = server if ours is None else f"{ours[0]}.{ours[1]}.*"
    remedy = f"install {wanted} at the site: pip install 'coterie[flower]=={wanted}'"
    return f"has coterie {line(site, LONGEST)} where the server has {server}; {remedy}"
