"""``coterie federate try``: a whole federation on this machine, beside the simulator."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.following import watched
from coterie.cli.options import Quiet, guarded, settings_from, with_settings
from coterie.deploy.order import ABOUT_DATA
from coterie.terminal import console, say, tell

if TYPE_CHECKING:
    from coterie.experiments.settings import Settings


@guarded
@with_settings(*(name for name in ABOUT_DATA if name not in ("data", "partition", "clients")))
def try_out(
    target: Annotated[str, typer.Argument(metavar="ALGORITHM|FILE.toml", help="e.g. wecfl")] = "wecfl",
    folder: Annotated[Path | None, typer.Option(help="keep the deployment in this new folder")] = None,
    check: Annotated[bool, typer.Option(help="run the simulator too, and compare")] = True,
    function: Annotated[
        list[str] | None, typer.Option(help="a client function that the sites' policies list; may be repeated")
    ] = None,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Try a whole federation on this machine: start server, proxy and sites, run an experiment, and stop them."""
    from coterie.deploy.audit import AUDIT, read_audit
    from coterie.deploy.run_control import make_order, submit
    from coterie.deploy.trial import has_nginx, trial
    from coterie.experiments import building
    from coterie.reporting.comparison import comparison

    own = target.endswith(".toml") or "data" in given
    small = {} if own else {"clients": 5, "clusters": 2, "partition": "rotation(0,180)"}
    settings = settings_from(target, {**small, **({} if own else {"rounds": 5}), **given})
    building.build_algorithm(settings)  # refuse a wrong one before anything is started
    data = building.build_data(settings)
    proxy = has_nginx()
    began = time.perf_counter()
    with _folder_or_temporary(folder) as kept:
        tell(f"starting a server{' behind nginx' if proxy else ''} and {len(data)} sites ...")
        with importable_here(), trial(data, kept, proxy, functions=function or ()) as found:
            tell(f"all sites are connected after {time.perf_counter() - began:.0f} s")
            order = make_order(found.place, settings)
            submit(found.place, order)
            summary = watched(found.place, order, quiet)
        console.print(comparison({settings.algorithm: [summary]}, console))
        lines = sum(len(read_audit(each)) for each in kept.glob(f"sites/*/{AUDIT}"))
        say(f"{lines} requests are in the sites' audit logs; {time.perf_counter() - began:.0f} s in all")
        if check:
            say(_compare_with_simulator(settings, Path(order.out)))


@contextmanager
def importable_here() -> Iterator[None]:
    """Let the programs that are started in the block import from the current folder, as this command does."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(Path.cwd())]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _folder_or_temporary(folder: Path | None) -> Iterator[Path]:
    """Give a folder that stays, or a temporary one if None."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="coterie-") as temporary:
        yield Path(temporary) / "try"


def _compare_with_simulator(settings: Settings, out: Path) -> str:
    """Compare the labels and models of a federation's run with those of a simulation."""
    import numpy as np

    from coterie.experiments.run import run_settings
    from coterie.experiments.run_folder import STATE, load_state

    simulated = run_settings(replace(settings, plan="native", threads=1, references=False)).state
    federated = load_state(out / STATE)
    same = simulated.labels.tolist() == federated.labels.tolist()
    apart = max(
        float(np.abs(ours - theirs).max(initial=0.0))
        for ours, theirs in zip(simulated.stack, federated.stack, strict=True)
    )
    return f"beside the simulator: labels {'equal' if same else 'DIFFER'}, models {apart:.1g} apart at most"
