"""The documents are true: links lead somewhere, examples run, commands name things that exist."""

from __future__ import annotations

import doctest
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from coterie.algorithms import add_ons as algorithm_add_ons
from coterie.algorithms import algorithms, build_algorithm
from coterie.data import add_ons, parse_partition
from coterie.data.partitions.registry import partitions
from coterie.data.sources.registry import sources

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TITLES = {
    "Ma": "Clustered federated learning",
    "Gu et al.": "Novel clustered federated learning based on local loss",
    "Lin et al.": "A joint gradient and loss based clustered federated learning design",
    "Zuziak et al.": "One-shot clustering for federated learning",
}
"""Of the four papers, as these print them but for capitals."""


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{path.name} links to {target}"
        assert not anchor or anchor in anchors(found), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_examples_print_what_they_say(path):
    failed, _ = doctest.testfile(str(path), module_relative=False)
    assert failed == 0


def commands():
    for path in DOCUMENTS:
        for line in re.findall(r"^coterie (?:run|compare|tune) .*$", path.read_text(), re.M):
            yield pytest.param(shlex.split(line, comments=True), id=f"{path.name}: {line[:50]}")


@pytest.mark.parametrize("words", list(commands()))
def test_commands_name_what_exists(words, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    flags = dict(pairwise(words))
    for word in words[2:]:
        if word.startswith("-"):
            break
        if not word.endswith(".toml"):
            assert build_algorithm(word).name == word
    if "--partition" in flags:
        parse_partition(flags["--partition"])
    if not flags.get("--data", "./").startswith("./"):
        assert flags["--data"] in sources


def test_every_algorithm_and_add_on_has_a_page_that_names_it():
    folder = ROOT / "docs" / "algorithms"
    pages = dict(re.findall(r"^\| ([a-z-]+) \|.*\]\(([a-z-]+\.md)\) \|$", (folder / "README.md").read_text(), re.M))
    assert {*algorithms, *algorithm_add_ons} <= set(pages)
    for name, page in pages.items():
        assert name in (folder / page).read_text().partition("\n")[0], f"{page} is not about {name}"


def test_the_four_papers_are_called_by_their_titles():
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    cited = re.findall(r"^Source: ([\w. ]+), \*([^*]+)\*", text, re.M)
    assert set(TITLES) <= {author for author, _ in cited}
    assert not {(author, title) for author, title in cited if TITLES.get(author, title) != title}


def test_the_page_of_an_own_method_shows_the_example_that_runs():
    assert (
        f"```python\n{(ROOT / 'examples' / 'own_method.py').read_text()}```"
        in (ROOT / "docs/own-method.md").read_text()
    )


def test_every_partition_and_add_on_has_a_section_and_a_picture():
    page = ROOT / "docs" / "partitions.md"
    assert {*partitions, *add_ons} <= anchors(page)
    assert {*partitions, *add_ons} == set(re.findall(r"pictures/partition-([a-z-]+)\.png", page.read_text()))


def test_every_algorithm_in_the_papers_options_can_be_built():
    text = (ROOT / "docs" / "paper-options.md").read_text()
    for written in re.findall(r"`([^`]+)`", text):
        name = re.match(r"\+?([a-z-]+)", written)
        if name and name[1] in (algorithm_add_ons if written.startswith("+") else algorithms):
            build_algorithm("wecfl" + written if written.startswith("+") else written)
