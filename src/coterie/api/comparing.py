"""Compare algorithms on clients that Python has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from coterie.api.settings import OF_ALGORITHM, OF_TRAINING, python_settings, seeds_of
from coterie.arguments import checked
from coterie.data import Federated
from coterie.errors import UsageError
from coterie.experiments.baselines import check_baseline, given_source, run_baseline
from coterie.experiments.records import facts_of
from coterie.experiments.resuming import check_examples
from coterie.experiments.run import simulate
from coterie.experiments.run_folder import load_summary
from coterie.experiments.session import Progress
from coterie.experiments.settings import Settings
from coterie.experiments.sweep import Made, check_finished, folder_for, run_all, with_plan
from coterie.models.given import Given
from coterie.reporting.compared import Comparison, compared
from coterie.reporting.progress import count_models, watch_plan
from coterie.server.contract import Algorithm
from coterie.tracking.track import track

Clients = Federated | Callable[[int], Federated]
"""The same clients for all seeds, or a function that draws those of a seed."""


@checked
def compare(
    algorithms: Sequence[Algorithm | str],
    clients: Clients,
    model: Given = None,
    *,
    rounds: int | None = None,
    seeds: int | Iterable[int] | str = 3,
    local: bool = True,
    last: int | None = None,
    baseline: str | None = None,
    progress: bool = False,
    out: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Compare algorithms on the same clients, starts and minibatches, with gains paired by seed.

    The first is the yardstick. ``clients`` are the same for all seeds; a function ``seed -> clients`` draws them anew
    for each, as the command line does: ``lambda seed: ct.load("digits").partition("iid", 40, seed)``. ``seeds``: a
    number, a list or ``"1..5"``. ``local``: clients' own models are compared too. ``last``: scores are means over this
    number of last evaluated rounds. ``baseline="gbm"`` also shows gradient boosted trees, at each client alone and on
    all rows in one place. ``out`` keeps the runs in folders, as the command line does: finished ones are not
    run again, unfinished ones are resumed; the table is saved there as CSV, LaTeX and JSON. ``options`` are those of
    ``run``; those of algorithms and of local training hold for algorithms that are given as text.
    """
    if baseline is not None:
        check_baseline(baseline)
    asked, folder = _asked(algorithms, local), None if out is None else Path(out)
    drawn = cache(clients if callable(clients) else lambda seed: clients)
    prepared = {}
    for seed in seeds_of(seeds):
        for each in asked:
            own = {k: v for k, v in options.items() if isinstance(each, str) or k not in (*OF_ALGORITHM, *OF_TRAINING)}
            own = {"rounds": rounds, "seed": seed, **own, "references": False}
            built, network, settings = python_settings(each, drawn(seed), model, own)
            prepared[settings.algorithm, seed] = settings, (built, drawn(seed), network)

    def folder_of(settings: Settings) -> Path | None:
        if folder is None:
            return None
        found = folder_for(settings, folder)
        if load_summary(found) is not None:
            check_examples(found, facts_of(prepared[settings.algorithm, settings.seed][1][1]))
        return found

    def make(settings: Settings, at: Path | None, report: Progress | None) -> Made:
        parts = prepared[settings.algorithm, settings.seed][1]
        done = simulate(*parts, settings, at, resume=True, progress=report, track=track)
        return Made(done.summary, done.history, done.trained.members)

    plan = [settings for settings, _ in prepared.values()]
    beside = None
    if baseline is not None:
        check_finished(plan, folder_of)
        count = partial(count_models, quiet=not progress)
        beside = run_baseline(plan[:: len(asked)], given_source(drawn), folder, count)
    with watch_plan(plan, quiet=not progress) as show_run:
        show = show_run if folder is None else with_plan(show_run, plan, folder)
        found = compared(run_all(plan, folder_of, show, make), last, folder, beside)
    if folder is not None:
        found.save(folder)
    return found


def _asked(algorithms: Sequence[Algorithm | str], local: bool) -> list[Algorithm | str]:
    """Return the algorithms to compare, with local models at the end if they are not among them."""
    if isinstance(algorithms, str | Algorithm):
        raise UsageError("algorithms is a single one; give a list, such as ['fedavg', 'wecfl']")
    names = [each if isinstance(each, str) else each.name for each in algorithms]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"{twice[0]} is listed twice; name each algorithm once")
    return [*algorithms, *(["local"] if local and "local" not in names else [])]
