"""Typed settings from tables: strict types, one line for whatever is wrong, and one declaration of reading options."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import pytest

from coterie.algorithms.auto import AUTO
from coterie.data import Reading
from coterie.deploy.config import OF_A_SITE, SiteConfig
from coterie.errors import UnknownName, UsageError
from coterie.experiments.run import RUNTIMES
from coterie.experiments.scores import WEIGHTS
from coterie.experiments.settings import OF_EVERY_RUN, OWN, Settings, make_settings
from coterie.typed import COMMAND_LINE, at_least, check_limits, each_one_of, make, members_of, one_of, option, types_of


@dataclass(frozen=True)
class Kettle:
    volume: float
    cups: int = option(4, limit=at_least(1, most=100))
    lid: bool = True
    owner: str | None = None
    colour: str = option("red", limit=one_of("red", "blue"))
    tags: tuple[str, ...] = option(("old",), limit=each_one_of("tag", "old", "new"))
    marks: str | Mapping[str, int] | None = None
    heat: int | str = 3

    def __post_init__(self):
        check_limits(self)


def made(where="kettle.toml", **table):
    return make(Kettle, {"volume": 1.5, **table}, where=where, noun="key")


def test_a_table_becomes_a_value_and_numbers_stay_as_they_are_written():
    kettle = made(volume=2, cups=3, owner="anna", tags=["new", "old"], marks={"a": 1}, heat="low", lid=False)
    assert kettle == Kettle(2, 3, False, "anna", tags=("new", "old"), marks={"a": 1}, heat="low")
    assert (type(kettle.volume), type(kettle.tags)) == (int, tuple)
    assert made() == Kettle(1.5)


WRONG = {
    "a text for a number": ({"cups": "3"}, "kettle.toml: cups is '3'; it must be a whole number, such as 4"),
    "true for a number": ({"cups": True}, "kettle.toml: cups is True; it must be a whole number, such as 4"),
    "a fraction": ({"cups": 3.0}, "kettle.toml: cups is 3.0; it must be a whole number, such as 4"),
    "true for any number": ({"volume": True}, "kettle.toml: volume is True; it must be a number"),
    "a number for true": ({"lid": 1}, "kettle.toml: lid is 1; it must be true or false"),
    "a number for a text": ({"owner": 3}, "kettle.toml: owner is 3; it must be a text"),
    "nothing for a number": ({"cups": None}, "kettle.toml: cups is None; it must be a whole number, such as 4"),
    "a text for a list": ({"tags": "old"}, "kettle.toml: tags is 'old'; it must be a list of texts, such as [\"old\"]"),
    "a list of mixed values": (
        {"tags": ["old", 3]},
        "kettle.toml: tags is ['old', 3]; it must be a list of texts, such as [\"old\"]",
    ),
    "a table of texts": (
        {"marks": {"a": "b"}},
        "kettle.toml: marks is {'a': 'b'}; it must be a text or a table of whole numbers",
    ),
    "one of two": ({"heat": 2.5}, "kettle.toml: heat is 2.5; it must be a whole number or a text, such as 3"),
    "a date": (
        {"cups": datetime.date(2020, 1, 2)},
        "kettle.toml: cups is datetime.date(2020, 1, 2); it must be a whole number, such as 4",
    ),
    "too little": ({"cups": 0}, "kettle.toml: cups is 0; it must be at least 1"),
    "too much": ({"cups": 10**30}, "kettle.toml: cups is 1e+30; it must be at most 100: lower it"),
    "no such value": ({"colour": "bleu"}, "kettle.toml: unknown colour 'bleu'; did you mean 'blue'? known: blue, red"),
    "no such item": ({"tags": ["odl"]}, "kettle.toml: unknown tag 'odl'; did you mean 'old'? known: new, old"),
}


@pytest.mark.parametrize(("table", "line"), WRONG.values(), ids=WRONG)
def test_whatever_is_wrong_is_one_line_with_the_place_the_value_and_the_limit(table, line):
    with pytest.raises(UsageError) as caught:
        made(**table)
    assert str(caught.value) == line


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown key in kettle.toml 'cup'; did you mean 'cups'\?"):
        made(cup=3)


def test_a_name_that_is_given_cannot_be_set_by_the_table():
    with pytest.raises(UnknownName, match=r"unknown key in kettle.toml 'owner'"):
        make(Kettle, {"volume": 1.0, "owner": "bert"}, where="kettle.toml", noun="key", owner="anna")
    assert make(Kettle, {"volume": 1.0}, where="kettle.toml", owner="anna").owner == "anna"


def test_a_name_without_a_default_must_be_there():
    with pytest.raises(UsageError, match=r"kettle.toml has no volume; add volume = \.\.\."):
        make(Kettle, {}, where="kettle.toml")


def test_a_long_value_is_shortened():
    deep: dict = {}
    for _ in range(5000):
        deep = {"a": deep}
    for value in ("x" * 100_000, list(range(100_000)), deep):
        with pytest.raises(UsageError) as caught:
            made(cups=value)
        assert len(str(caught.value)) < 200


def test_a_limit_on_the_command_line_is_told_without_the_place():
    with pytest.raises(UsageError, match=r"^cups is 0; it must be at least 1$"):
        made(COMMAND_LINE, cups=0)


def test_numbers_of_numpy_may_be_given_in_python():
    assert Settings("fedavg", rounds=np.int64(3), participation=np.float64(0.5)).rounds == 3


def test_every_option_of_reading_is_a_setting_and_a_key_of_a_site():
    """The options of ``Reading`` are declared there; settings and sites have each of the same type, or not given."""
    assert (
        set(OWN) | set(OF_EVERY_RUN)
        == {each.name for each in fields(Reading)}
        <= {each.name for each in fields(Settings)}
    )
    assert set(OF_A_SITE) <= {each.name for each in fields(SiteConfig)}
    for kind, names in ((Settings, (*OWN, *OF_EVERY_RUN)), (SiteConfig, OF_A_SITE)):
        for name in names:
            (wanted,) = members_of(types_of(Reading)[name])
            assert members_of(types_of(kind)[name]) == (str if wanted == tuple[str, ...] else wanted,)
    assert all(each.default is None for each in fields(Settings) if each.name in OWN)


def test_reading_options_are_those_that_are_given():
    settings = make_settings({"algorithm": "fedavg", "ignore": "id,date", "label": "y", "seed": 3})
    assert settings.reading() == {"label": "y", "ignore": ("id", "date"), "seed": 3}
    assert make_settings({"algorithm": "fedavg", "ignore": ""}).reading() == {"ignore": (), "seed": 1}


def test_words_of_the_declaration_are_those_of_what_is_built():
    assert Settings("wecfl", clusters=AUTO).clusters == AUTO
    for name in RUNTIMES:
        assert Settings("fedavg", runtime=name).runtime == name
    for name in WEIGHTS:
        assert Settings("fedavg", weigh_by=name).weigh_by == name
