"""Elements of HTML and SVG, built from Python: every text is escaped, and only elements are not."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from coterie.terminal import plain


class Markup(str):
    """Text that is markup already, made by ``element``, ``text`` or ``trusted``."""


Child = str | Markup | Iterable["Child"] | None

EMPTY = frozenset({"input", "br", "meta", "link", "path", "line", "rect", "circle", "image"})
"""Elements without content."""


def text(words: object) -> Markup:
    r"""Return words as text of a page: letters that a page or a terminal would obey are escaped.

    >>> text("<b>&\x1b")
    '&lt;b&gt;&amp;\\x1b'
    """
    return Markup(escape("\n".join(plain(line) for line in str(words).split("\n"))))


def trusted(markup: str) -> Markup:
    """Take markup that the package itself wrote, such as its style sheet."""
    return Markup(markup)


def join(children: Child) -> Markup:
    """Return the markup of children one after the other; None is nothing."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    return text(children) if isinstance(children, str) else Markup("".join(map(join, children)))


def element(tag: str, *children: Child, **attributes: object) -> Markup:
    """Return an element; ``_`` at the end of an attribute's name is left out, others are hyphens.

    An attribute that is None or False is left out, one that is True has no value.

    >>> element("p", "1 < 2", class_="a", hidden=True, title=None)
    '<p class="a" hidden>1 &lt; 2</p>'
    """
    words = "".join(_attribute(name, value) for name, value in attributes.items())
    return Markup(f"<{tag}{words}/>" if tag in EMPTY else f"<{tag}{words}>{join(children)}</{tag}>")


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-") if name != "viewBox" else name
    return f" {written}" if value is True else f' {written}="{text(_number(value))}"'


def _number(value: object) -> object:
    return f"{value:.5g}" if isinstance(value, float) else value
