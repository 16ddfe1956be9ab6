"""What `coterie data show` tells: counts, the majority class, duplicates, a picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image
from rich.console import Console

from coterie.data import Federated, Split
from coterie.reporting.data_view import (
    Duplicates,
    bar,
    class_counts,
    client_table,
    facts,
    find_duplicates,
    group_table,
    save_holdings,
)


def rows(*values):
    return np.array(values, np.float32)[:, None]


def three_clients() -> Federated:
    train = [
        (rows(1, 1, 2), np.array([0, 0, 1])),
        (rows(2, 3), np.array([1, 1])),
        (rows(4, 5, 6), np.array([2, 2, 2])),
    ]
    test = [(rows(1, 9), np.array([0, 1])), (rows(6), np.array([1])), (rows(-0.0), np.array([2]))]
    names = ("anna", "bert", "carl")
    groups = np.array([0, 0, 1])
    return Federated("toy", "by hand", names, Split.join(train), Split.join(test), 3, groups=groups, notes=("a note",))


def pixels_of(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def printed(renderable, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_classes_are_counted_by_client():
    assert class_counts(three_clients()).tolist() == [[2, 1, 0], [0, 2, 0], [0, 0, 3]]


def test_duplicates_inside_across_and_from_train_to_test():
    # Inside: one repeat of 1. Across: the 2 of anna and the 2 of bert. Leaked: 1 and 6.
    assert find_duplicates(three_clients()) == Duplicates(inside=1, across=2, leaked=2)


def test_both_zeros_are_one_number():
    data = three_clients()
    zero = replace(data, train=Split.join([(rows(0.0), np.array([0]))] * 3))
    assert find_duplicates(zero) == Duplicates(inside=0, across=3, leaked=1)


def test_a_set_without_duplicates_says_so(images):
    assert str(find_duplicates(images())) == "no duplicates"


def test_facts_give_sizes_majority_duplicates_and_notes():
    lines = "\n".join(facts(three_clients()))
    assert "3 clients, 8 train, 4 test" in lines
    assert "least 2, median 3, most 3" in lines
    # The largest class has 3 of 8; guessing their own majority the clients are right on 2 + 2 + 3 of 8.
    assert "37.5% of all examples, 87.5% if each client guesses its own" in lines
    assert "2 test examples are also train examples" in lines
    assert lines.endswith("a note")


def test_groups_add_up():
    text = printed(group_table(three_clients()))
    wanted = [["0", "2", "2", "3", "·", "5"], ["1", "1", "·", "·", "3", "3"], ["all", "3", "2", "3", "3", "8"]]
    assert [line.split() for line in text.splitlines() if line.split()[1:]][1:] == wanted
    assert group_table(replace(three_clients(), groups=None)) is None


def test_a_client_has_a_row_with_a_bar():
    text = printed(client_table(three_clients(), Console(width=100)))
    assert next(line for line in text.splitlines() if "bert" in line).split() == [
        *["bert", "0", "·", "2", "·", "2", "1"],
        "1" * 24,
    ]
    assert bar(np.array([1, 1]), 4).plain == "0011"


def test_many_classes_and_many_clients_stay_readable():
    many = 80
    train = Split.join([(rows(i), np.array([i % 62])) for i in range(many)])
    data = Federated("wide", "by hand", tuple(f"c{i}" for i in range(many)), train, train, 62)
    text = printed(client_table(data, Console(width=100)))
    assert "20 more" in text
    assert max(map(len, text.splitlines())) <= 100


def test_on_a_narrow_screen_the_bars_stay_and_no_number_is_cut():
    text = printed(client_table(three_clients(), Console(width=60)), width=60)
    assert next(line for line in text.splitlines() if "bert" in line).split() == ["bert", "0", "2", "1", "1" * 24]


def test_targets_have_sizes_but_no_classes(targets, tmp_path):
    data = targets()
    assert "majority" not in "\n".join(facts(data))
    assert str(data.train.sizes[0]) in printed(client_table(data, Console(width=100)))
    save_holdings(tmp_path / "targets.png", data)
    assert pixels_of(tmp_path / "targets.png").shape[1] > 500


def test_the_picture_shows_every_class_colour(tmp_path):
    save_holdings(tmp_path / "who.png", three_clients())
    pixels = pixels_of(tmp_path / "who.png").reshape(-1, 3)
    for colour in ((31, 119, 180), (255, 127, 14), (44, 160, 44)):
        assert (pixels == colour).all(axis=1).sum() > 500
