"""The end of a run: its scores beside those of guessing and of references, and the verdict in its summary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.engine.metrics import find_metric
from coterie.experiments.guessing import Guesses
from coterie.experiments.main_score import main_score
from coterie.experiments.records import DataFacts, Record
from coterie.experiments.references import (
    MakeRows,
    reference_rows,
    reference_settings,
    with_guesses,
    with_references,
    without_references,
)
from coterie.experiments.session import ShowRun, unseen
from coterie.experiments.settings import Settings
from coterie.experiments.summary import Row
from coterie.experiments.verdict import NOTHING, Verdict, judge
from coterie.server.clustering.decision import CANNOT_TELL


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """What ``Session.train`` does at the end of a run, for a simulation or a federation.

    facts, settings  those of the run
    guesses          how well guessing does at each client; None where that is not known
    own              whether the data are a user's own tables, for which references are trained unless settings say no
    out              the folder of the run, in which those of its references are
    make, show       how a reference is trained, and how its rounds are shown
    """

    facts: DataFacts
    settings: Settings
    guesses: Guesses | None
    own: bool
    out: Path | None
    make: MakeRows
    show: ShowRun = unseen

    def __call__(self, rows: list[Row], summary: Record) -> tuple[list[Row], Record]:
        """Return the rows with the scores of others beside their own, and the summary with the verdict."""
        settings = self.settings
        metric = None if settings.metric is None else find_metric(settings.metric)[0]
        score = main_score(self.facts.classes is None, settings.metric)
        if self.guesses is not None:
            rows = with_guesses(rows, self.guesses, self.facts, metric)
        missing = without_references(settings)
        if self.own if settings.references is None else settings.references:
            wanted = reference_settings(settings, summary["rounds"])
            others, missing = reference_rows(wanted, self.out, self.make, self.show)
            rows = with_references(rows, others, score.column)
        return rows, with_verdict(summary, judge(rows, score, settings.weigh_by, missing))


def with_verdict(summary: Record, verdict: Verdict) -> Record:
    """Return a summary with a verdict; where nothing was learnt, advice about clusters is withdrawn."""
    found = {**summary, "verdict": verdict.table()}
    if verdict.learnt == NOTHING and "advise" in summary:
        text = "No advice on clusters: the models have learnt nothing beyond guessing, so they cannot tell."
        found["advise"] = {**summary["advise"], "decision": CANNOT_TELL, "one_model_enough": None, "text": text}
    return found
