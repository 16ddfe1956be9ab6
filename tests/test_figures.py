"""Figures as values: their data by hand, as CSV, and drawn in both ways."""

import csv
import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.experiments.client_sketches import SIZE, ClientSketches
from coterie.reporting.figures import maps, of_run, printed
from coterie.reporting.figures.drawn import draw
from coterie.reporting.figures.drawn_scores import MOST_POINTS, thinned
from coterie.reporting.figures.marks import Figure, Interval, Intervals, Line, Lines
from coterie.reporting.markup import element, text

HISTORY = [
    {
        "round": i,
        "accuracy": a,
        "worst": a - 0.2,
        "clusters": c,
        "there": 4,
        "temperature": t,
        "purity": 1.0,
        "ari": 0.0,
    }
    for i, (a, c, t) in enumerate([(0.5, [4], 0.4), (0.6, [4], 0.3), (0.75, [2, 2], 0.5)])
]
LABELS = [np.array(each) for each in ([0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1])]


def some_figures():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(2, 12, SIZE)).astype(np.float32)
    sketches = ClientSketches(np.arange(12), np.array([0, 2]), points)
    labels = [np.arange(12) % 3 - 1] * 3
    names = [f"<client {i}>" for i in range(12)]
    rows = (Interval("a", "one model", 1.0, 0.5, 1.5), Interval("<b>", "local models", -1.0, None, None))
    found = [
        *of_run.curves({"a": [HISTORY, HISTORY[:2]], "<b>": [HISTORY]}),
        of_run.sizes(HISTORY),
        of_run.flow(LABELS, HISTORY),
        of_run.found_and_true(np.array([1, 1, 0, 0]), LABELS[-1], {"purity": 1.0, "ari": 1.0}),
        of_run.temperature(HISTORY),
        of_run.agreement(HISTORY),
        *maps.maps(sketches, labels, names, [0, 1, 2]),
        maps.similarities(sketches, labels[-1], names),
        maps.distances(np.abs(rng.normal(size=(12, 12))), labels[-1], names),
        Figure("gains", "Gains", "Gains.", Intervals(rows, "gain")),
    ]
    return {figure.id: figure for figure in found}


FIGURES = some_figures()


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_well_formed_in_a_page_and_names_are_escaped(name):
    root = ET.fromstring(str(draw(FIGURES[name])))
    drawing = root.find(".//svg[@role='img']")
    assert drawing.get("aria-label")
    assert drawing.findall(".//*[@data-tip]") or root.findall(".//*[@data-heat]")
    numbers = {word for each in drawing.iter() for word in (each.get("d") or "").replace("M", " ").split()}
    assert not {"nan", "inf"} & numbers


@pytest.mark.parametrize("name", ["accuracy", "sizes", "flow", "map-pca", "similarity", "gains"])
def test_every_kind_of_figure_is_drawn_for_print(name, tmp_path):
    drawing = printed.draw(FIGURES[name])
    drawing.savefig(tmp_path / "figure.png", dpi=20)
    assert drawing.get_suptitle() == FIGURES[name].title
    assert any(axes.has_data() or axes.patches for axes in drawing.axes)


def test_csv_is_the_data():
    rows = list(csv.reader(io.StringIO(FIGURES["accuracy"].csv())))
    assert rows[0] == ["line", "round", "accuracy", "low", "high"]
    assert rows[3] == ["a", "3.0", "0.675", "0.6", "0.75"]  # the shorter run keeps 0.6
    assert rows[4] == ["<b>", "1.0", "0.5", "", ""]
    flow = list(csv.reader(io.StringIO(FIGURES["flow"].csv())))
    assert flow[1:] == [
        ["round 1", "cluster 0", "round 3", "cluster 0", "2"],
        ["round 1", "cluster 0", "round 3", "cluster 1", "2"],
    ]
    assert list(csv.reader(io.StringIO(FIGURES["sizes"].csv())))[3] == ["3.0", "2.0", "2.0"]


def test_the_event_of_a_temperature_is_when_clusters_formed():
    (event,) = FIGURES["temperature"].marks.events
    assert (event.x, event.text) == (3.0, "clusters formed in round 3")
    assert of_run.temperature([each | {"clusters": [2, 2]} for each in HISTORY]).marks.events == ()


def test_found_against_true_pairs_groups_and_clusters():
    links = {(each.source, each.target): each.count for each in FIGURES["found-true"].marks.links}
    assert links == {(0, 1): 2, (1, 0): 2}


def test_true_groups_stand_beside_the_clusters_in_which_they_ended_and_have_their_colour():
    """Groups have no colour of their own, which would be that of another cluster."""
    marks = FIGURES["found-true"].marks
    assert [block for block, _ in marks.names[0]] == [1, 0]
    assert list(marks.sizes(0)) == [1, 0]
    assert [(each.source, each.target) for each in marks.ordered] == [(1, 0), (0, 1)]
    assert [marks.colour(each) for each in marks.ordered] == [0, 1]
    assert [marks.block_colour(column, 1) for column in (0, 1)] == [-1, 1]
    blocks = ET.fromstring(str(draw(FIGURES["found-true"]))).findall(".//rect")
    assert [each.get("class") for each in blocks] == ["block cx", "block cx", "block c0", "block c1"]


def test_an_axis_begins_and_ends_at_numbers_that_it_names():
    drawing = ET.fromstring(str(draw(FIGURES["accuracy"])))
    texts = [each.text for each in drawing.findall(".//g[@class='axes']/text")]
    assert texts == ["0.5", "0.55", "0.6", "0.65", "0.7", "0.75", "1", "2", "3", "round", "accuracy"]


def test_a_loss_that_grows_without_limit_does_not_flatten_the_others():
    def losses(*values):
        return [[{"round": i, "test_loss": value, "clusters": [1]} for i, value in enumerate(values)]]

    words = of_run.CURVES["test_loss"]
    wide = of_run.curve({"a": losses(1.0, 0.5), "b": losses(1.0, 20_000.0)}, "test_loss", *words)
    assert wide.marks.log
    assert wide.about.endswith("the axis is logarithmic.")
    texts = [each.text for each in ET.fromstring(str(draw(wide))).findall(".//g[@class='axes']/text")]
    assert texts[:4] == ["0.1", "10", "1,000", "1e+05"]
    assert printed.draw(wide).axes[0].get_yscale() == "log"
    for values in ((1.0, 0.5), (1.0, 0.0), (1.0, float("nan"))):
        assert not of_run.curve({"a": losses(*values)}, "test_loss", *words).marks.log
    assert not of_run.curve(
        {"a": [[{"round": 0, "accuracy": 1e-9}, {"round": 1, "accuracy": 1.0}]]}, "accuracy", "A", "a"
    ).marks.log


def test_the_metric_that_was_named_comes_first_by_its_name():
    history = [{"round": 0, "metric": 0.7, "accuracy": 0.9, "clusters": [1]}]
    first, second = of_run.curves({"a": [history]}, "some.package:auroc")
    assert (first.id, first.title, first.marks.y, second.id) == ("metric", "auroc", "auroc", "accuracy")


def test_intervals_stand_together_by_name_with_their_numbers_and_the_same_colours_in_any_order():
    rows = (
        Interval("fedavg", "local models", -0.0362, -0.06, -0.01),
        Interval("ifca", "one model", 0.0162, -0.0061, 0.0301),
        Interval("ifca", "local models", 0.052, None, None),
    )
    marks = Intervals(rows, "gain", order=("one model", "local models"))
    assert marks.kinds == ["one model", "local models"]
    drawing = ET.fromstring(str(draw(Figure("gains", "Gains", "Gains.", marks))))
    texts = [each.text for each in drawing.findall(".//svg[@role='img']/text")]
    assert texts[-5:] == ["-0.036 (-0.060 to -0.010)", "+0.016 (-0.006 to +0.030)", "+0.052", "fedavg", "ifca"]
    assert [each.get("class") for each in drawing.findall(".//path[@data-tip]")] == ["dot k2", "dot k1", "dot k2"]
    labels = [each.get_text() for each in printed.draw(Figure("gains", "G", "G.", marks)).axes[0].get_yticklabels()]
    assert labels == ["fedavg", "ifca", ""]


def test_records_without_a_score_have_no_figure():
    assert of_run.curve({"a": [[{"round": 0, "clusters": [1]}]]}, "accuracy", "Accuracy", "a score") is None
    assert of_run.sizes([{"round": 0, "clusters": [1] * 50}]) is None
    assert of_run.flow([np.zeros(3, int)] * 2, HISTORY) is None


@settings(max_examples=30)
@given(hnp.arrays(np.int64, st.tuples(st.integers(2, 6), st.just(7)), elements=st.integers(-1, 3)))
def test_a_flow_loses_nobody(labels):
    marks = of_run.flow_between(list(labels), tuple(f"round {i}" for i in range(len(labels))), of_run.cluster_name)
    for column, row in enumerate(labels):
        numbers, counts = np.unique(row, return_counts=True)
        assert marks.sizes(column) == dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def test_a_map_separates_clients_that_are_apart():
    """Two far groups of points: on the first component all of one are on one side."""
    points = np.random.default_rng(0).normal(size=(1, 10, SIZE))
    points[0, 5:] += 20
    sketches = ClientSketches(np.arange(10), np.array([0]), points.astype(np.float32))
    figures = {each.id: each for each in maps.maps(sketches, [np.arange(10) // 5], list("abcdefghij"), [0])}
    (panel,) = figures["map-pca"].marks.panels
    side = panel.points[:, 0] > panel.points[:, 0].mean()
    assert len(set(side[:5])) == len(set(side[5:])) == 1
    assert side[0] != side[5]
    square = maps.similarities(sketches, np.arange(10) // 5, list("abcdefghij")).marks.values
    assert square[5:, 5:].min() > 0.9 > abs(square[:5, 5:]).max()


def test_clients_without_sketches_are_not_on_the_map():
    points = np.ones((1, 3, SIZE), np.float32)
    points[0, 1] = np.nan
    sketches = ClientSketches(np.arange(3), np.array([0]), points)
    (figure,) = maps.maps(sketches, [np.zeros(3, int)], ["a", "b", "c"], [0])
    assert figure.marks.panels[0].names == ("a", "c")


def test_a_long_line_is_thinned_in_a_page_and_keeps_its_ends():
    xs = tuple(map(float, range(1000)))
    line = thinned(Line("a", xs, xs, xs, xs))
    assert (len(line.x), line.x[0], line.high[-1]) == (MOST_POINTS, 0.0, 999.0)
    lines = tuple(Line(f"method {i}", xs, xs, xs, xs) for i in range(8))
    assert len(draw(Figure("a", "A", "A.", Lines(lines, "score")))) < 300_000


@settings(max_examples=40)
@given(st.text(max_size=20))
def test_no_text_becomes_markup(words):
    escaped = element("p", words, title=words)
    assert "".join(ET.fromstring(escaped).itertext()) == ET.fromstring(f"<p>{text(words)}</p>").text or not words
    assert escaped.count("<") == 2
