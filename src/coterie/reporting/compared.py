"""A comparison as a value: its table for people, programs and papers, and its picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from coterie.experiments.baselines import Baseline
from coterie.experiments.main_score import METRIC, RMSE, SPLIT, score_of
from coterie.experiments.method_verdicts import verdicts_of
from coterie.experiments.statistics import BY_SEED, LEVEL, OVER_SEEDS, Gain
from coterie.experiments.summary import SHOWN, add_shown, default_last
from coterie.experiments.sweep import Done
from coterie.experiments.verdict import Verdict
from coterie.files import write_atomically
from coterie.reporting.comparison import Summary, columns_of, comparison, gains_of, verdict_table
from coterie.reporting.html import html_table
from coterie.reporting.plots import History, draw_comparison, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 200
"""Letters in a line of the table where there is no terminal."""


@dataclass(frozen=True)
class Comparison:
    """Algorithms on the same seeds: ``summaries`` and ``histories`` by algorithm, one for each seed.

    Baselines, such as gradient boosting, have summaries alone.
    ``last``: scores are means over this number of last evaluated rounds. ``folder`` holds the runs, if it was kept.
    ``verdicts``: how each does against guessing, one model (fedavg) and local models, where these are compared.
    """

    summaries: dict[str, list[Summary]] = field(repr=False)
    histories: dict[str, list[History]] = field(repr=False)
    last: int
    folder: Path | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        some = next(iter(self.summaries.values()))
        return f"Comparison({', '.join(self.summaries)}: {len(some)} seeds on {some[0]['data']})"

    def __str__(self) -> str:
        text = io.StringIO()
        console = Console(file=text, width=WIDTH)
        console.print(comparison(self.summaries, console))
        if self.verdicts:
            console.print(verdict_table(self.verdicts, console))
        return text.getvalue()

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of plain numbers for each algorithm: mean and standard deviation, and the gain by seed.

        Scores are fractions of 1, or in the target's unit.
        """
        shown = {name: [each | each["shown"] for each in runs] for name, runs in self.summaries.items()}
        some = next(iter(shown.values()))[0]
        score = replace(score_of(some), scale=1.0)
        gains, found = gains_of(shown, score), []
        for name, runs in shown.items():
            row: dict[str, Any] = {"algorithm": name, "seeds": len(runs)}
            for column in columns_of(score, RMSE in some):
                values = [run[column.key] for run in runs if run.get(column.key) is not None]
                if values:
                    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
                    key = score.name if column.key == METRIC else column.key
                    row |= {key: float(np.mean(values)), f"{key}_std": spread}
            if name in gains:
                row |= _gain_row(gains[name])
            found.append(row)
        return found

    def to_pandas(self) -> Any:
        """Return the rows as a pandas data frame with the algorithms as its index."""
        import pandas as pd  # type: ignore[import-untyped,unused-ignore]

        return pd.DataFrame(self.rows()).set_index("algorithm")

    def to_csv(self) -> str:
        """Return the rows as CSV."""
        rows, text = self.rows(), io.StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def to_json(self) -> str:
        """Return the rows, and the summaries of all runs, as JSON."""
        verdicts = {name: each.table() for name, each in self.verdicts.items()}
        content = {
            "last": self.last,
            **self._basis(),
            "rows": self.rows(),
            "verdicts": verdicts,
            "runs": self.summaries,
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    def _basis(self) -> dict[str, Any]:
        """Return what the scores are of, and how intervals and p values are made."""
        some = next(iter(self.summaries.values()))[0]
        score = score_of(some)
        better, weights = "lower" if score.smaller else "higher", some.get("weigh_by", SPLIT)
        how = {"level": LEVEL, "interval": OVER_SEEDS, "test": f"{BY_SEED}, corrected by Holm"}
        return {"score": score.name, "better": better, "split": SPLIT, "weigh_by": weights, **how}

    def to_latex(self) -> str:
        """Return the table as LaTeX (booktabs): mean and standard deviation over seeds, the best in bold."""
        table = comparison(self.summaries, Console(file=io.StringIO(), width=10_000))
        columns = [str(column.header) for column in table.columns]
        cells = [list(column.cells) for column in table.columns]
        lines = [
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex, columns)) + r" \\",
            r"\midrule",
            *(" & ".join(_latex_cell(each) for each in row) + r" \\" for row in zip(*cells, strict=True)),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        caption = "\n".join(f"% {line}" for line in str(table.caption).splitlines())
        return "\n".join(lines) + f"\n{caption}\n"

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw scores by round and gains by seed; save the picture if a path is given, and return the figure."""
        some = next(iter(self.summaries.values()))[0]
        title = f"{some['data']}, {some['partition']}, {some['clients']} clients"
        score = score_of(some)
        levels = {
            name: [run[score.column] for run in runs]
            for name, runs in self.summaries.items()
            if name not in self.histories
        }
        figure = draw_comparison(self.histories, title, self.last, levels, score)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def save(self, folder: Path) -> None:
        """Write the table as CSV, LaTeX and JSON, and the picture, into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("csv", self.to_csv()), ("tex", self.to_latex()), ("json", self.to_json())):
            write_atomically(folder / f"comparison.{name}", content.encode())
        self.plot(folder / "comparison.png")

    def _repr_html_(self) -> str:
        """Show the table and the picture in a notebook."""
        table = comparison(self.summaries, Console(file=io.StringIO(), width=10_000))
        return html_table(table) + svg(self.plot())


def compared(
    runs: Iterable[Done],
    last: int | None = None,
    folder: Path | None = None,
    baselines: Mapping[str, Sequence[Baseline]] | None = None,
) -> Comparison:
    """Return the comparison of runs by algorithm; a table shows the mean of the ``last`` evaluated rounds.

    ``baselines``, on the same seeds, have no rounds.
    """
    by_name: dict[str, list[Done]] = {}
    for done in runs:
        by_name.setdefault(done.settings.algorithm, []).append(done)
    histories = {name: [done.history for done in some] for name, some in by_name.items()}
    number = last or default_last([history for some in histories.values() for history in some])
    shown = {name: [add_shown(done.summary, done.history, number) for done in some] for name, some in by_name.items()}
    beside = {name: [_without_rounds(each.summary) for each in some] for name, some in (baselines or {}).items()}
    judged = verdicts_of(by_name) if all(done.rows for some in by_name.values() for done in some) else {}
    return Comparison(shown | beside, histories, number, folder, judged)


def _gain_row(found: Gain) -> dict[str, Any]:
    """Return a gain over the first method as columns of a row."""
    between = {"gain_low": found.low, "gain_high": found.high}
    return {
        "gain": found.mean,
        "gain_std": found.std,
        **between,
        "wins": found.wins,
        "p": found.p,
        "p_holm": found.p_holm,
    }


def _without_rounds(summary: Summary) -> Summary:
    """Return the summary of a baseline with the scores that a table shows."""
    return {**summary, "shown": {name: summary[name] for name in SHOWN.values() if name in summary}}


_ESCAPED = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "—": "--",
}


def _latex(text: str) -> str:
    return "".join(_ESCAPED.get(letter, letter) for letter in text)


def _latex_cell(each: Any) -> str:
    text = _latex(str(each))
    return rf"\textbf{{{text}}}" if getattr(each, "style", "") == "bold" else text
