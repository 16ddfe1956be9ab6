"""Several runs side by side: means over seeds, gains paired by seed against the first method, and who is with whom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sklearn.metrics import adjusted_rand_score

from coterie.experiments.baselines import POOLED
from coterie.experiments.main_score import METRIC, RMSE, SPLIT, Score, score_of
from coterie.experiments.settings import read_goal
from coterie.experiments.statistics import BY_CLIENT, BY_SEED, LEVEL, Gain, gain, gains_over_first
from coterie.experiments.summary import last_in_words
from coterie.experiments.tuning import Result
from coterie.experiments.verdict import ENOUGH, NAMES, NOTHING, Against, Verdict, show_p
from coterie.protocol.stack import UNPLACED
from coterie.terminal import cell, line, plain

Summary = dict[str, Any]

MOST_NAMES = 100
"""Names of a cluster's clients that a table shows, at most."""


NARROW = 100
"""Letters in a line up to which a table is laid out to save room."""

FEWEST = 3
"""Columns of scores that a table keeps before it is laid out to save room."""

LONGEST_NAME = 24
"""Letters of an algorithm in a line of a narrow table; a longer one takes several lines."""

HUGE = 1e6
"""Numbers from here on, such as the errors of a model that diverged, are shown with a power of ten."""


def number(value: float, digits: int) -> str:
    """Return a number as tables show it.

    >>> number(3.14159, 2), number(-252_512_345_678.9, 3)
    ('3.14', '-2.5e+11')
    """
    return f"{value:.{digits}f}" if abs(value) < HUGE else f"{value:.1e}"


@dataclass(frozen=True)
class Column:
    """A column of a table: a number of the summaries, its scale and its digits."""

    key: str
    title: str
    scale: float = 1.0
    digits: int = 1
    best: str | None = "max"

    def text(self, values: Sequence[float]) -> str:
        """Return the mean and the standard deviation over seeds."""
        scaled = np.array(values) * self.scale
        spread = f" ± {number(scaled.std(ddof=1), self.digits)}" if len(scaled) > 1 else ""
        return f"{number(scaled.mean(), self.digits)}{spread}"

    def cells(self, runs: Mapping[str, Sequence[Summary]]) -> dict[str, Text]:
        """Return the cell of each method, the best in bold; a dash where no summary has the number.

        Where some runs lack it, as those that went astray, the cell says so and is never the best.
        """
        values = {name: [s[self.key] for s in some if s.get(self.key) is not None] for name, some in runs.items()}
        means = {name: np.mean(known) for name, known in values.items() if known and len(known) == len(runs[name])}
        best = None
        if self.best is not None and means:
            best = (max if self.best == "max" else min)(means, key=lambda name: means[name])
        some = {name: f" ({len(known)} of {len(runs[name])})" * (name not in means) for name, known in values.items()}
        shown = {name: f"{self.text(known)}{some[name]}" if known else "—" for name, known in values.items()}
        return {name: cell(text, "bold" if name == best else "") for name, text in shown.items()}


CLASSIFICATION = (
    Column("worst_client", "worst client %", 100),
    Column("accuracy", "accuracy %", 100),
    Column("macro_f1", "macro-F1 %", 100),
    Column("ari", "ARI", 1, 2),
    Column("clusters_found", "clusters", 1, 1, None),
    Column("seconds", "seconds", 1, 1, None),
    Column("bytes_down", "MB down", 1e-6, 1, None),
    Column("bytes_up", "MB up", 1e-6, 1, None),
    Column("models_down", "down/fedavg", 1, 2, None),
    Column("models_up", "up/fedavg", 1, 2, None),
    Column("models_stored", "stored/fedavg", 1, 2, None),
)
REGRESSION = (
    Column("worst_client", "worst rmse", 1, 3, "min"),
    Column("rmse", "rmse", 1, 3, "min"),
    Column("r2", "r2", 1, 3),
    *CLASSIFICATION[3:],
)


def gain_cells(found: Gain | None, digits: int) -> tuple[str, str, str]:
    """Return the gain with its interval over seeds, the wins and the p value corrected by Holm, as a table shows them.

    >>> gain_cells(gain([0.9, 0.8, 0.95], [0.8, 0.75, 0.8], 100), 1)
    ('+10.0 [-2.4, 22.4]', '3/3', '0.074')
    """
    if found is None:
        return ("—",) * 3
    both = found.low is not None and found.high is not None
    between = f" [{number(found.low or 0.0, digits)}, {number(found.high or 0.0, digits)}]" if both else ""
    much = f"{'+' * (found.mean >= 0)}{number(found.mean, digits)}{between}"
    return (much, f"{found.wins}/{found.seeds}", show_p(found.p_holm))


def columns_of(score: Score, regression: bool) -> list[Column]:
    """Return the columns of a table of runs that are judged by a score: its worst client and itself come first."""
    usual = REGRESSION if regression else CLASSIFICATION
    if score.column != METRIC:
        return list(usual)
    best = "min" if score.smaller else "max"
    own = [Column("worst_client", f"worst {score.name}", 1, 3, best), Column(METRIC, score.name, 1, 3, best)]
    return [*own, *usual[1:]]


def gains_of(runs: Mapping[str, Sequence[Summary]], score: Score) -> dict[str, Gain]:
    """Return the gain of each method over the first in the main score, as tables show it."""
    scores = {name: [s.get(score.column) for s in some] for name, some in runs.items()}
    return gains_over_first(scores, score.sign * score.scale)


def comparison(runs: dict[str, list[Summary]], console: Console) -> Table:
    """Return the table of a comparison; ``runs`` has the summaries of each method with ``shown``, of the same seeds.

    The last columns are left out rather than squeezed; where not even the first three fit, headings are broken.
    ``--json`` has all numbers.
    """
    runs = {name: [s | s["shown"] for s in summaries] for name, summaries in runs.items()}
    everything = [s for summaries in runs.values() for s in summaries]
    federated = {name: summaries for name, summaries in runs.items() if "baseline" not in summaries[0]}
    score, regression = score_of(everything[0]), RMSE in everything[0]
    columns = [c for c in columns_of(score, regression) if any(c.key in s for s in everything)]
    if all(s.get("worst_judged") is not None for s in everything):
        columns[0] = replace(columns[0], key="worst_judged")
    table = _that_fits(runs, columns, score, console)
    trained = [s for summaries in federated.values() for s in summaries]
    lines = [*_caption(federated, trained, score), *_cost_of_staying(runs, score)]
    table.caption = Text("\n".join(map(plain, lines)))
    return table


def _that_fits(runs: dict[str, list[Summary]], columns: list[Column], score: Score, console: Console) -> Table:
    """Return the table with as many columns as the screen has room for; no number is cut while one column fits."""
    counts = range(len(columns), 0, -1)
    layout = [(narrow, n) for narrow in layouts(console.width) for n in counts if narrow or n >= FEWEST]
    return first_that_fits((_table(runs, columns[:n], score, narrow) for narrow, n in layout), console)


def first_that_fits(tables: Iterable[Table], console: Console) -> Table:
    """Return the first of several layouts of a table that the screen has room for, or else the last."""
    for table in tables:
        if table.__rich_measure__(console, console.options).maximum <= console.width:
            break
    return table


def _table(runs: dict[str, list[Summary]], columns: list[Column], score: Score, narrow: bool) -> Table:
    table = _by_algorithm(narrow)
    paired_titles = (f"gain, {score.difference}", "wins", "p") if len(runs) > 1 else ()
    for title in (*paired_titles, *(column.title for column in columns)):
        table.add_column(title.replace(" ", "\n") if narrow else title, justify="right", no_wrap=True)
    cells, gains = [column.cells(runs) for column in columns], gains_of(runs, score)
    for name in runs:
        paired: tuple[str, ...] = gain_cells(gains.get(name), score.digits) if len(runs) > 1 else ()
        paired = tuple(each.replace(" [", "\n[") for each in paired) if narrow else paired
        table.add_row(Text(_name(name, narrow)), *paired, *(each[name] for each in cells))
    return table


def layouts(width: int) -> tuple[bool, ...]:
    """Return whether a table on a screen of this width may be laid out wide, and narrow, to save room."""
    return (True,) if width <= NARROW else (False, True)


def _by_algorithm(narrow: bool, **layout: Any) -> Table:
    """Return a table whose first column is the algorithm; a narrow one has no lines between columns."""
    if not narrow:
        table = Table(caption_justify="left", **layout)
        table.add_column("algorithm", no_wrap=True)
        return table
    table = Table(caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, **layout)
    table.add_column("algorithm", overflow="fold", min_width=len("algorithm"), max_width=LONGEST_NAME)
    return table


def _name(name: str, narrow: bool) -> str:
    """Return the name of an algorithm; in a narrow table a long one is broken where its next part begins.

    >>> _name("ifca(clusters=4)+finetune", narrow=True).split()
    ['ifca(clusters=4)', '+finetune']
    """
    lines = [""]
    for part in re.split(r"(?=[+(,])", line(name)) if narrow else [line(name)]:
        if lines[-1] and len(lines[-1]) + len(part) > LONGEST_NAME:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _cost_of_staying(runs: dict[str, list[Summary]], score: Score) -> list[str]:
    """Say by how much the pooled baseline beats the best method that leaves the data where they are."""
    found = {name: [s.get(score.column) for s in some] for name, some in runs.items()}
    scores = {name: [v for v in some if v is not None] for name, some in found.items() if None not in some}
    pooled = scores.pop(POOLED, None)
    if pooled is None or not scores:
        return []
    best = max(scores, key=lambda name: score.sign * float(np.mean(scores[name])))
    cost = gain(pooled, scores[best], score.sign * score.scale)
    spread = f" ± {number(cost.std, score.digits)}" if cost.seeds > 1 else ""
    unit = f"points of {score.name}" if score.unit else f"of {score.name}"
    much = f"{number(abs(cost.mean), score.digits)}{spread} {unit}"
    how = f"costs {much}" if cost.mean > 0 else f"costs nothing here: it is worse by {much}"
    return [
        f"{POOLED} is a ceiling, not private: all clients' rows in one place. That the data may not move",
        f"{how}, against {best}, the best of the others.",
    ]


def _caption(runs: dict[str, list[Summary]], everything: list[Summary], score: Score) -> list[str]:
    seeds = sorted({s["seed"] for s in everything})
    some, first = everything[0], next(iter(runs))
    lengths = sorted({s["rounds"] for s in everything})
    rounds = " to ".join(str(number) for number in dict.fromkeys((lengths[0], lengths[-1])))
    lines = [
        f"{some['data']}, {some['partition']}, {some['clients']} clients, {some['model']}, {rounds} rounds, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        f"Scores: {SPLIT} split, {last_in_words(some['last'])}; clients count by their {some.get('weigh_by', SPLIT)} "
        f"examples{' (± standard deviation over seeds)' * (len(seeds) > 1)}.",
    ]
    lines += [*_about_worst(everything, score), *_undefined(everything, score), *_about_pooled(everything, score)]
    if "until" in some:
        lines.append(_when_reached(runs, some))
    if len({s["algorithm"] for s in everything}) > 1:
        how = f" [{LEVEL} % interval over seeds]; p: {BY_SEED}, corrected by Holm" if len(seeds) > 1 else ""
        lines.append(f"Gains in {score.name} over {first} are paired by seed{how}.")
    if all("majority" in s for s in everything):
        majority = np.mean([s["majority"] for s in everything]) * 100
        lines.append(f"Always guessing each client's majority class gives {majority:.1f} %.")
    return lines


def _about_worst(everything: list[Summary], score: Score) -> list[str]:
    """Return among whom the worst client was sought, or how little its score says, where test examples are few."""
    known = [s["worst"] for s in everything if "worst" in s]
    if not known:
        return []
    if all(each["enough"] for each in known):
        fewer = any(each["among"] < s["clients"] for each, s in zip(known, everything, strict=False))
        return [f"Worst client: of those with {ENOUGH} test examples or more."] * fewer
    some = next(each for each in known if not each["enough"])
    between = (
        "" if some["low"] is None else f", so {100 * some['low']:.0f} to {100 * some['high']:.0f} % (95 % interval)"
    )
    where, which = ("in some runs ", "these") if any(each["enough"] for each in known) else ("", "all")
    number = f"that of the first of {which} has {some['test']}{between}"
    return [f"Worst client: {where}none has {ENOUGH} test examples; {number}."]


def _undefined(everything: list[Summary], score: Score) -> list[str]:
    """Say how many clients have no value of the metric that the user named, and why."""
    clients = everything[0]["clients"]
    absent = [clients - s["metric_clients"] for s in everything if s.get("metric_clients") is not None]
    if not any(absent):
        return []
    few = " to ".join(str(number) for number in dict.fromkeys((min(absent), max(absent))))
    why = f" ({score.why})" if score.why else ""
    return [f"{score.name}: {few} of {clients} clients have no value{why}; they do not count."]


def _about_pooled(everything: list[Summary], score: Score) -> list[str]:
    """Say what a score of all examples together is, and how much its bins may have changed it."""
    errors = [s["metric_error"] for s in everything if s.get("metric_error") is not None]
    if not score.pooled or not errors:
        return []
    return [
        f"{score.name}: of all clients' examples together, from histograms of scores that change it by at most "
        f"{max(errors):.3f}; worst client: by its own examples."
    ]


def _when_reached(runs: dict[str, list[Summary]], some: Summary) -> str:
    until = some["until"]
    key = read_goal(until, some.get("metric_name")).key
    found = {name: ", ".join("never" if s[key] is None else str(s[key]) for s in some) for name, some in runs.items()}
    return f"Round (from 0) in which {until} first held, by seed: {'; '.join(f'{n} {r}' for n, r in found.items())}."


STYLES = {"better": "green", "worse": "red", "unclear": ""}
"""How the cells of verdicts are shown."""


def verdict_table(verdicts: Mapping[str, Verdict], console: Console) -> Table:
    """Return a table of the verdicts of a comparison: each method against guessing, one model and local models."""
    return first_that_fits((_verdict_table(verdicts, narrow) for narrow in layouts(console.width)), console)


def _verdict_table(verdicts: Mapping[str, Verdict], narrow: bool) -> Table:
    some = next(iter(verdicts.values())).score
    table = _by_algorithm(narrow, title="Verdict", title_justify="left", show_lines=True)
    for name in NAMES.values():
        table.add_column(f"against {name}", no_wrap=True)
    for name, verdict in verdicts.items():
        cells = [_verdict_cell(verdict.against.get(which), verdict, "\n" if narrow else " ") for which in NAMES]
        nothing = "\nnothing learnt" if verdict.learnt == NOTHING else ""
        table.add_row(Text(f"{_name(name, narrow)}{nothing}"), *cells)
    unit = ", points" if some.unit else ""
    lines = [
        f"Change of {some.name}{unit} ({next(iter(verdicts.values())).basis}, paired) where green is better; clients.",
        f"p: {BY_CLIENT}, corrected by Holm for all comparisons of this table.",
    ]
    without = max(verdict.without for verdict in verdicts.values())
    if without:
        lines.append(
            f"Up to {without} clients have no {some.name}{f' ({some.why})' * bool(some.why)}; they do not count."
        )
    for verdict in verdicts.values():
        lines += [f"{NAMES[which]}: {why}." for which, why in verdict.missing.items()]
    table.caption = Text("\n".join(dict.fromkeys(lines)))
    return table


def _verdict_cell(found: Against | None, verdict: Verdict, between_parts: str) -> Text:
    if found is None:
        return cell("—")
    show, both = verdict.score.show, found.low is not None and found.high is not None
    change = [show(found.change, "+"), f"({show(found.low or 0.0, '+')} to {show(found.high or 0.0, '+')})"][: 1 + both]
    counts = (f"better {found.better}, worse {found.worse}", f"of {found.clients}, p {show_p(found.p_holm)}")
    return Text("\n".join(between_parts.join(part) for part in (change, counts)), STYLES[found.outcome])


def ranking(results: Sequence[Result]) -> Table:
    """Return a table of all candidates with their validation scores, the best first."""
    score = results[0].main
    title, column = score.title, Column("", "", score.sign * score.scale, 2 if score.unit else 4)
    table = Table(caption="validation data only", caption_justify="left")
    for name in results[0].candidate:
        table.add_column(cell(name), justify="right")
    table.add_column(f"validation {title}", justify="right")
    for place, result in enumerate(results):
        cells = map(cell, (*result.candidate.values(), column.text(result.scores)))
        table.add_row(*cells, style="bold" if place == 0 else "")
    return table


def names_by_cluster(clusters: Mapping[str, int]) -> dict[int, list[str]]:
    """Return the names of the clients in each cluster, largest cluster first.

    >>> names_by_cluster({"anna": 1, "bert": 0, "carl": 1})
    {1: ['anna', 'carl'], 0: ['bert']}
    """
    names: dict[int, list[str]] = {}
    for name, cluster in clusters.items():
        names.setdefault(cluster, []).append(name)
    return dict(sorted(names.items(), key=lambda item: -len(item[1])))


def stability(runs: Sequence[Mapping[str, int]]) -> float | None:
    """Return the mean adjusted Rand index over all pairs of runs; None for one run.

    1: the clusters are always the same; 0: they agree no more than by chance.
    """
    pairs = list(combinations(runs, 2))
    if not pairs:
        return None
    return float(np.mean([_rand_index(first, second) for first, second in pairs]))


def most_typical(runs: Sequence[Mapping[str, int]]) -> int:
    """Return the position of the run that agrees best with the others."""
    total = [sum(_rand_index(one, other) for other in runs) for one in runs]
    return int(np.argmax(total))


def _rand_index(first: Mapping[str, int], second: Mapping[str, int]) -> float:
    """Return how well two clusterings agree on the clients that both have placed."""
    both = [name for name in first if name in second]
    return float(adjusted_rand_score([first[name] for name in both], [second[name] for name in both]))


def who(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return the names of a cluster's clients, the first of many.

    >>> who(["anna", "bert"]), who(["anna", "bert", "carl"], most=2)
    ('anna, bert', 'anna, bert, … 1 more')
    """
    rest = [f"… {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *rest])


def clusters_table(runs: Mapping[str, Sequence[Mapping[str, int]]]) -> Table | None:
    """Return a table of each method's clusters: those of its most typical seed, and their stability over seeds.

    Clients without a cluster are left out, and methods with a single cluster, or with one client in each; None if that
    leaves no method.
    """
    table = Table(caption_justify="left", show_lines=True)
    for title in ("algorithm", "stability", "cluster", "clients", "who"):
        left = title in ("algorithm", "who")
        table.add_column(title, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for name, found in runs.items():
        clusterings = [{client: k for client, k in each.items() if k != UNPLACED} for each in found]
        groups = names_by_cluster(clusterings[most_typical(clusterings)])
        if not 1 < len(groups) < sum(map(len, groups.values())):
            continue
        stable = stability(clusterings)
        for position, (number, group) in enumerate(groups.items()):
            first = (name, "—" if stable is None else f"{stable:.2f}") if position == 0 else ("", "")
            table.add_row(*map(cell, (*first, number, len(group), who(group))))
    if not table.row_count:
        return None
    table.caption = "stability: mean adjusted Rand index between seeds; 1 always the same clusters, 0 chance"
    return table
