"""What was measured, as Markdown for docs/performance.md."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks import machine
from benchmarks.peers.driver import Result

OURS, GEMM, FMA = "coterie", "gemm", "fma"
"""The contestant that is 1, and the two that measure the machine."""

ALONE = "plain loop"
"""The contestant that hands in one client's model, which is worse than a mean: its loss only has to fall."""

HEAD = (
    "contestant",
    "s/round",
    "x coterie",
    "% of GEMM",
    "% of FMA",
    "memory, GB",
    "start, s",
    "first round, s",
    "loss",
)


@dataclass(frozen=True)
class Outcome:
    """The results of one workload: how many operations a round has, the loss at the start and after one round."""

    title: str
    flops: float
    start_loss: float
    results: Mapping[str, Result]
    losses: Mapping[str, float]
    peaks: Mapping[str, float]

    def did_the_work(self, name: str) -> bool:
        """Return whether the loss fell, and about as far as the engine's; True where there is nothing to compare."""
        if name not in self.losses:
            return False
        fall = self.start_loss - self.losses[name]
        expected = self.start_loss - self.losses.get(OURS, self.losses[name])
        return fall > 0 and (name == ALONE or 0.5 * expected < fall < 2 * expected)


def report(outcomes: list[Outcome], repeats: int) -> str:
    """Return the whole report: the machine, a table for each workload, the versions."""
    tables = "\n\n".join(map(_section, outcomes))
    return f"{_preface(repeats)}\n\n{tables}\n\n{_versions(outcomes)}\n"


def _preface(repeats: int) -> str:
    return (
        f"`make bench-peers` on {datetime.date.today():%d %B %Y}: {machine.describe()}, Python "
        f"{platform.python_version()}. A round is 10 SGD steps of batch 32 for every client; medians of {repeats} "
        "rounds, contestants in turns of random order. x coterie: the time relative to coterie's engine, larger is "
        "slower. Memory is the peak of all of a contestant's processes, with its copy of the data. The first round, in "
        "which some compile, is not in the median. Loss: of the mean model after that round (of the last client's for "
        "the plain loop); (!) where it did not fall about as far as the engine's."
    )


def _section(outcome: Outcome) -> str:
    peaks = ", ".join(f"{name.upper()} {speed / 1e9:.0f} GFLOP/s" for name, speed in outcome.peaks.items())
    rows = [HEAD, ("---",) * len(HEAD), *_rows(outcome)]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"**{outcome.title}**: loss at the start {outcome.start_loss:.2f}; {peaks or 'no peak measured'}\n\n{lines}"


def _rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Yield a row for each contestant, the fastest first, then those that failed, with the reason."""
    contestants = {name: result for name, result in outcome.results.items() if name not in (GEMM, FMA)}
    done = [name for name, result in contestants.items() if not result.failure]
    for name in sorted(done, key=lambda each: contestants[each].median):
        yield (name, *_figures(outcome, name))
    for name, result in contestants.items():
        if result.failure:
            yield (name, f"failed: {result.failure.replace('|', '/')}", *[""] * (len(HEAD) - 2))


def _figures(outcome: Outcome, name: str) -> tuple[str, ...]:
    result, ours = outcome.results[name], outcome.results.get(OURS)
    ratio = f"{result.median / ours.median:.2f}" if ours and not ours.failure else ""
    speed = outcome.flops / result.median
    shares = [f"{100 * speed / outcome.peaks[peak]:.1f}" if peak in outcome.peaks else "" for peak in (GEMM, FMA)]
    costs = (f"{result.memory / 1e9:.1f}", f"{result.start_up:.1f}", f"{result.first:.1f}")
    loss = (
        f"{outcome.losses[name]:.2f}{'' if outcome.did_the_work(name) else ' (!)'}" if name in outcome.losses else "(!)"
    )
    return (f"{result.median:.2f}", ratio, *shares, *costs, loss)


def _versions(outcomes: list[Outcome]) -> str:
    found: dict[str, str] = {}
    for outcome in outcomes:
        for result in outcome.results.values():
            found.update(result.versions)
    return "Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(found.items())) + "."
