"""The verdict of a report: what it comes to in words, gains with intervals, who is worse off and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.experiments.main_score import Score, main_score
from coterie.experiments.statistics import BY_CLIENT, EQUAL, LEVEL, OVER_CLIENTS
from coterie.experiments.summary import Row
from coterie.experiments.verdict import LOCAL, NAMES, ONE_MODEL, Against, Verdict, column_of, judge, show_p
from coterie.reporting.figures.drawn import draw
from coterie.reporting.html_tables import table
from coterie.reporting.markup import Markup, element, join
from coterie.reporting.report.collecting import Content, RunContent
from coterie.reporting.report.parts import gain_figure


def verdict_of(run: RunContent) -> Verdict | None:
    """Return the verdict on a finished run; None of one that is not."""
    if run.summary is None:
        return None
    score = main_score("rmse" in run.summary, run.summary.get("metric_name"))
    known = run.summary.get("verdict", {})
    return judge(run.rows, score, run.settings.weigh_by, known.get("missing", {}))


def verdicts_of_content(content: Content) -> dict[str, Verdict]:
    """Return the verdict on each method; empty as long as nothing is finished."""
    if content.is_comparison:
        return dict(content.comparison.verdicts) if content.comparison is not None else {}
    found = verdict_of(content.run)
    return {} if found is None else {content.run.settings.algorithm: found}


def verdict_body(content: Content) -> Markup:
    """Return the verdict as the first part of a page."""
    verdicts = verdicts_of_content(content)
    if not verdicts:
        return element("p", progress_in_words(content), class_="lead")
    gains = gain_figure(verdicts)
    tables = single_table(content.run, verdicts) if not content.is_comparison else methods_table(content, verdicts)
    said = [element("p", f"{name}: {each.sentence}.", class_="lead") for name, each in verdicts.items()]
    tiles = None if content.is_comparison else headline(content.run, next(iter(verdicts.values())))
    words = None if content.is_comparison else gains_in_words(content.run, next(iter(verdicts.values())))
    steps = () if content.is_comparison else next(iter(verdicts.values())).next_steps
    cautions = dict.fromkeys([*(line for each in verdicts.values() for line in each.cautions), *steps])
    unfinished = None if content.is_finished else element("p", progress_in_words(content))
    notes = element("ul", (element("li", line) for line in cautions)) if cautions else None
    glance = [element("div", said, words, unfinished, tiles), None if gains is None else draw(gains)]
    return join([element("div", glance, class_="glance"), tables, notes])


def progress_in_words(content: Content) -> str:
    """Return how far unfinished runs are.

    A run that has no record yet is in its first round.
    """
    runs = [run for some in content.runs.values() for run in some]
    finished = sum(run.is_finished for run in runs)
    if len(runs) > 1:
        return f"Not finished: {finished} of {len(runs)} runs that have begun are finished."
    (run,) = runs
    done = run.history[-1]["round"] + 1 if run.history else 0
    return f"Not finished: {done} of {run.settings.rounds} rounds are on this page; the verdict comes at the end."


def headline(run: RunContent, verdict: Verdict) -> Markup:
    """Return the few numbers that stand at the top."""
    summary: Mapping[str, Any] = run.summary or {}
    worst = summary.get("worst_judged", summary.get("worst_client"))
    score = verdict.score
    numbers = [
        (score.name, "—" if verdict.value is None else score.in_unit(verdict.value)),
        ("worst client", "—" if worst is None else score.in_unit(worst)),
        ("clients", str(summary["clients"])),
        ("clusters", str(summary["clusters_found"])),
        ("rounds", str(summary["rounds"])),
        *([("ARI with true groups", f"{summary['ari']:.2f}")] if summary.get("ari") is not None else []),
    ]
    return element(
        "dl", (element("div", element("dt", name), element("dd", value)) for name, value in numbers), class_="tiles"
    )


def gains_in_words(run: RunContent, verdict: Verdict) -> list[Markup]:
    """Say what is gained over one model and over local models, how many clients are worse off, and by how much."""
    score, found = verdict.score, []
    if verdict.diverged:
        return []
    unit = " points" if score.unit == "%" else ""
    for which in (ONE_MODEL, LOCAL):
        if which in verdict.against:
            each = verdict.against[which]
            gain, *_ = cells(each, score)
            words = f"Over {NAMES[which]} the gain in {score.name} is {gain.replace(' (', f'{unit} (')}. "
            lost = losses_in_words(run.rows, which, score)
            some = f"{each.worse} of {each.clients} clients are worse off, by {lost}." if each.worse else ""
            found.append(element("p", words + (some or "No client is worse off.")))
    return found


HEADS = ("against", "theirs", f"gain ({LEVEL} % interval)", "p", "better for", "worse for", "those lose")


def single_table(run: RunContent, verdicts: Mapping[str, Verdict]) -> Markup:
    """Return the table of one run against guessing, one model and local models."""
    (verdict,) = verdicts.values()
    rows = [
        (NAMES[which], verdict.score.in_unit(found.theirs), *cells(found, verdict.score), _loss(run, which, verdict))
        for which, found in verdict.against.items()
    ]
    rows += [(NAMES[which], why, "", "", "", "", "") for which, why in verdict.missing.items()]
    said = f"{_basis(verdict)} A gain is better whatever the score."
    return join([table(HEADS, rows, "the run against guessing, one model and local models"), element("p", said)])


def _basis(verdict: Verdict) -> str:
    """Return which examples and weights the numbers of a table are of, and how intervals and p values are made."""
    return (
        f"{verdict.basis[0].upper()}{verdict.basis[1:]}, paired ({OVER_CLIENTS.partition(': ')[2]}). "
        f"p: {BY_CLIENT}, corrected by Holm for all comparisons of this table."
    )


def _loss(run: RunContent, which: str, verdict: Verdict) -> str:
    """Say by how much the clients that are worse off lose, and who loses most."""
    return losses_in_words(run.rows, which, verdict.score)


def losses_in_words(rows: Sequence[Row], which: str, score: Score) -> str:
    """Say by how much the clients that are worse off than with a reference lose: on average, and who most.

    >>> rows = [{"client": "a", "rmse": 3.0, "local_rmse": 2.0}, {"client": "b", "rmse": 1.0, "local_rmse": 2.0}]
    >>> losses_in_words(rows, "local", main_score(True))
    '1.000 on average, a most: 1.000'
    """
    ours, theirs = column_of(rows, score.column), column_of(rows, f"{which}_{score.column}")
    losses = np.nan_to_num((ours - theirs) * (1 if score.smaller else -1), nan=-np.inf)
    worse = losses > EQUAL
    if not worse.any():
        return "nobody"
    most = int(losses.argmax())
    mean, largest = (score.show(float(each)) for each in (losses[worse].mean(), losses[most]))
    return f"{mean} on average, {rows[most]['client']} most: {largest}"


def cells(found: Against, score: Score) -> tuple[str, str, str, str]:
    """Return the gain with its interval, the corrected p value, and how many clients are better and worse off."""
    sign = -1 if score.smaller else 1
    ends = sorted(sign * end for end in (found.low, found.high) if end is not None)
    between = f" ({score.show(ends[0], '+')} to {score.show(ends[1], '+')})" if len(ends) == len("()") else ""
    gain = f"{score.show(sign * found.change, '+')}{between}"
    return gain, show_p(found.p_holm), f"{found.better} of {found.clients}", str(found.worse)


def methods_table(content: Content, verdicts: Mapping[str, Verdict]) -> Markup:
    """Return the table of all methods of a comparison against guessing, one model and local models."""
    rows = [
        (name, NAMES[which], each.score.in_unit(found.theirs), *cells(found, each.score), _mean_loss(found, each.score))
        for name, each in verdicts.items()
        for which, found in each.against.items()
    ]
    missing = dict.fromkeys(
        f"{NAMES[which]}: {why}." for each in verdicts.values() for which, why in each.missing.items()
    )
    said = [*map(_basis, list(verdicts.values())[:1]), *who_counts(content), *missing]
    return join(
        [
            table(("method", *HEADS), rows, "every method against guessing, one model and local models"),
            element("p", " ".join(said)),
        ]
    )


def _mean_loss(found: Against, score: Score) -> str:
    return "nobody" if found.lost is None else f"{score.show(found.lost)} on average"


def who_counts(content: Content) -> list[str]:
    """Say what a client is in a verdict over several seeds, of which each may draw its own clients."""
    some = next(iter(content.comparison.summaries.values())) if content.comparison is not None else []
    if len(some) < 2:
        return []
    if str(some[0]["partition"]).startswith("natural"):
        return [f"Every client counts with its mean over {len(some)} seeds."]
    clients = some[0]["clients"]
    return [f"Every seed draws its own clients: {clients} clients and {len(some)} seeds are {clients * len(some)}."]
