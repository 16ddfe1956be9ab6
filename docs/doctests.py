"""A hook of mkdocs: doctests that stand in text, as in docstrings, are shown as code and not as quotations."""

from __future__ import annotations

from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

BEFORE_FENCES = 28
"""A priority: after line ends are made the same (30), before fenced code is taken out (25)."""


class Fences(Preprocessor):
    """Put a fence around every block of lines that begins with ``>>>`` and is not within one."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines with fences; a block ends at a blank line."""
        made: list[str] = []
        written = inside = False
        for line in lines:
            written ^= line.lstrip().startswith("```")
            begins = not written and not inside and line.startswith(">>> ")
            ends = inside and not line.strip()
            made += ["", "```pycon", line] if begins else ["```", line] if ends else [line]
            inside = (inside or begins) and not ends
        return [*made, "```"] if inside else made


def _register(md: Markdown) -> None:
    md.preprocessors.register(Fences(md), "doctests", BEFORE_FENCES)


def on_config(config: Any) -> Any:
    """Add it to the extensions, of pages and of docstrings."""
    doctests = Extension()
    doctests.extendMarkdown = _register
    config.markdown_extensions.append(doctests)
    return config
