"""How a paper's settings come to those of the user: as defaults, and told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.errors import UsageError
from coterie.presets.papers import papers
from coterie.presets.preset import Argument, Preset

AS = "as"
"""The key of an experiment file, and the flag, that names a paper."""

EITHER = ({"steps", "epochs"},)
"""Settings of which the user says one, and then the paper's other is not meant."""


def expand(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of settings with those of the paper that it names ``as``; what the table says itself stays.

    >>> expand({"as": "thesis", "algorithm": "ifca+cam", "data": "cifar-10"})["algorithm"]
    'ifca(start=random)+cam(warmup=30)'
    """
    said = {name: value for name, value in table.items() if name != AS}
    if AS not in table:
        return said
    preset = _paper(table[AS])
    taken = {name for one in EITHER if one & said.keys() for name in one} | said.keys()
    texts = {name: said[name] for name in ("data", "algorithm") if isinstance(said.get(name), str)}
    known = preset.settings_for(texts.get("data"))
    spelled = {"algorithm": preset.spell(texts["algorithm"])} if "algorithm" in texts else {}
    return {**{name: each.value for name, each in known.items() if name not in taken}, **said, **spelled}


def told(table: Mapping[str, Any]) -> list[str]:
    """What a paper adds to a table of settings, for the user: a line of settings, and one of the algorithm.

    >>> told({"as": "joint", "algorithm": "fedavg", "data": "cifar-10", "clients": 8, "partition": "table"})
    ['as joint: steps=1, momentum=0.0, clusters=4, model=lenet']
    """
    if AS not in table:
        return []
    preset, full = _paper(table[AS]), expand(table)
    added = [f"{name}={value}" for name, value in full.items() if name not in table]
    seeds = [f"{preset.seeds} seeds (compare with --seeds 1..{preset.seeds})"] if preset.seeds else []
    lines = [f"as {preset.name}: {', '.join([*added, *seeds])}"]
    before, after = table.get("algorithm"), full.get("algorithm")
    return lines if before == after else [*lines, f"as {preset.name}: {before} is {after}"]


def arguments_of(name: str) -> list[tuple[str, Argument]]:
    """What papers say of the arguments of an algorithm or add-on, with the name of each paper."""
    presets = [papers.build(paper) for paper in papers]
    return [(preset.name, each) for preset in presets for each in preset.arguments if name in each.of]


def _paper(name: Any) -> Preset:
    if not isinstance(name, str):
        raise UsageError(f"as is {name!r}; it must be the name of a paper: {', '.join(papers)}")
    preset: Preset = papers.build(name)
    return preset
