"""Figures of a run from Python, ``run.plot.flow()``: each is drawn by matplotlib, returned, and saved if asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import UsageError
from coterie.experiments.client_sketches import ClientSketches
from coterie.experiments.main_score import METRIC, Score
from coterie.reporting.figures import maps, of_run
from coterie.reporting.figures.marks import Figure
from coterie.reporting.plots import History, draw_run
from coterie.typing import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Target = str | Path | None
"""Where a figure is saved: a .png, .svg or .pdf file; None: nowhere."""

KINDS = ("tsne", "pca")


@dataclass(frozen=True)
class RunPlots:
    """The figures of a run; called, scores and cluster sizes in one picture.

    Every method returns a matplotlib figure, and saves it if a ``path`` is given. ``figures`` are the same as values
    with their data: ``run.plot.figures()["flow"].csv()``.
    """

    title: str
    history: History
    names: Sequence[str]
    labels: Sequence[Array]
    sketches: ClientSketches | None = None
    groups: Array | None = None
    score: Score | None = None

    def __call__(self, path: Target = None) -> Drawing:
        """Draw scores and cluster sizes by round."""
        return saved(draw_run(self.history, self.title, self.score), path)

    def curves(self, score: str | None = None, path: Target = None) -> Drawing:
        """Draw a score by round: accuracy, macro_f1, worst, test_loss, rmse, metric; by default the main one."""
        found = {figure.id: figure for figure in of_run.curves({self.title: [self.history]}, self._metric)}
        name = next(iter(found), "") if score is None else score.replace("_", "-")
        if name not in found:
            raise UsageError(f"score is {score}; the records of this run have {', '.join(found)}")
        return printed(found[name], "curves", path)

    def sizes(self, path: Target = None) -> Drawing:
        """Draw the sizes of clusters by round, stacked."""
        return printed(of_run.sizes(self.history), "sizes", path)

    def flow(self, path: Target = None) -> Drawing:
        """Draw which clients went from cluster to cluster over rounds."""
        return printed(of_run.flow(self.labels, self.history), "flow", path)

    def found_and_true(self, path: Target = None) -> Drawing:
        """Draw the true groups beside the clusters that were found."""
        return printed(self._found_and_true(), "found_and_true", path)

    def agreement(self, path: Target = None) -> Drawing:
        """Draw purity and adjusted Rand index by round."""
        return printed(of_run.agreement(self.history), "agreement", path)

    def map(self, kind: str = "tsne", path: Target = None) -> Drawing:
        """Draw a map of clients over rounds, by t-SNE (``tsne``) or principal components (``pca``)."""
        if kind not in KINDS:
            raise UsageError(f"kind is {kind!r}; take {' or '.join(KINDS)}")
        found = {figure.id: figure for figure in self._maps()}
        return printed(found.get(f"map-{kind}"), "map", path)

    def heatmap(self, path: Target = None) -> Drawing:
        """Draw the similarities of clients, sorted by cluster."""
        return printed(self._similarities(), "heatmap", path)

    def temperature(self, path: Target = None) -> Drawing:
        """Draw the clustering temperature by round, and when clusters formed."""
        return printed(of_run.temperature(self.history), "temperature", path)

    def learning_gap(self, path: Target = None) -> Drawing:
        """Draw personal and general F1 by round."""
        return printed(of_run.personal_and_general(self.history), "learning_gap", path)

    def figures(self) -> dict[str, Figure]:
        """Return all figures of the run as values, by id."""
        single = (
            of_run.sizes(self.history),
            of_run.flow(self.labels, self.history),
            self._found_and_true(),
            of_run.agreement(self.history),
            self._similarities(),
            of_run.temperature(self.history),
            of_run.personal_and_general(self.history),
        )
        several = [*of_run.curves({self.title: [self.history]}, self._metric), *single, *self._maps()]
        return {figure.id: figure for figure in several if figure is not None}

    @property
    def _metric(self) -> str | None:
        return self.score.name if self.score is not None and self.score.column == METRIC else None

    def _found_and_true(self) -> Figure | None:
        if self.groups is None or not len(self.labels):
            return None
        return of_run.found_and_true(self.groups, self.labels[-1], self.history[-1])

    def _maps(self) -> list[Figure]:
        rounds = [record["round"] for record in self.history[: len(self.labels)]]
        return [] if self.sketches is None else maps.maps(self.sketches, self.labels, self.names, rounds)

    def _similarities(self) -> Figure | None:
        if self.sketches is None or not len(self.labels):
            return None
        return maps.similarities(self.sketches, self.labels[-1], self.names)


def printed(figure: Figure | None, name: str, path: Target) -> Drawing:
    """Draw a figure for print; refuse one that the run has no data for."""
    from coterie.reporting.figures.printed import draw

    if figure is None:
        raise UsageError(f"plot.{name}: the run has no data for it; plot.figures() holds those that it has data for")
    return saved(draw(figure), path)


def saved(drawing: Drawing, path: Target) -> Drawing:
    """Save a drawing if a path is given, and return it."""
    if path is not None:
        drawing.savefig(path, dpi=150)
    return drawing
