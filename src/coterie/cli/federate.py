"""The commands of ``coterie federate``: run the same algorithms on a real federation.

As in ``cli.main``, modules that take long to import are imported by the commands that use them: Flower's node of a
site needs none of them.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import (
    AsJson,
    Earlier,
    Out,
    Quiet,
    at_ctrl_c,
    guarded,
    settings_either_way,
    settings_from,
    with_settings,
)
from coterie.cli.watch import watch_federation
from coterie.deploy.order import ABOUT_DATA
from coterie.errors import require
from coterie.terminal import console, say, say_json, tell

if TYPE_CHECKING:
    from coterie.deploy.model_store import ModelStore
    from coterie.deploy.order import Order
    from coterie.deploy.server_folder import ServerFolder
    from coterie.experiments.session import Progress
    from coterie.experiments.settings import Settings

federate_app = typer.Typer(no_args_is_help=True, help="Run the same algorithms on a real federation, over Flower.")

Folder = Annotated[Path, typer.Option(help="the folder that coterie federate init made for this machine")]
HERE = Path()


@federate_app.command("init")
@guarded
def init(
    folder: Annotated[Path, typer.Argument(help="a new folder")],
    sites: Annotated[str, typer.Option(help="the sites' names, separated by commas")],
    host: Annotated[str, typer.Option(help="the name or address by which sites reach the server")] = "localhost",
    port: Annotated[int, typer.Option(help="the port of the server that sites connect to")] = 9443,
    inner: Annotated[int, typer.Option(help="the port of Flower behind the proxy, on loopback")] = 8000,
    schema: Annotated[
        Path | None, typer.Option(help="a schema.json, which says how the sites' tables become arrays")
    ] = None,
    label: Annotated[str | None, typer.Option(help="the column to predict, in every site's table")] = None,
    columns: Annotated[str | None, typer.Option(help="the columns to learn from; default: all others")] = None,
    missing: Annotated[str | None, typer.Option(help="what missing values are, as for coterie run")] = None,
    task: Annotated[str | None, typer.Option(help="classification or regression (by the label's values)")] = None,
) -> None:
    """Write a deployment: a folder for the server and one for each site, with certificates, keys and systemd units."""
    from coterie.data import Schema
    from coterie.deploy.deployment import write_deployment

    names = [name.strip() for name in sites.split(",")]
    agreed = None if schema is None else Schema.load(schema)
    given = {"label": label, "columns": columns, "missing": missing, "task": task}
    reading = {name: value for name, value in given.items() if value is not None}
    config = write_deployment(folder, names, host, port, inner=inner, schema=agreed, reading=reading)
    say(f"a federation of {len(config.sites)} sites is in {folder}; {folder / 'README.txt'} says what is next")


@federate_app.command("add-site")
@guarded
def add(folder: Annotated[Path, typer.Argument(help="the folder of the deployment")], name: str) -> None:
    """Add a site to a deployment: its folder and its keys; restart the server to admit it."""
    from coterie.deploy.deployment import add_site

    site = add_site(folder, name)
    say(f"{site.folder} is for {name}; copy these to the server's folder, and start it again:")
    for path in (folder / "server" / "federation.toml", *sorted((folder / "server" / "keys").glob(f"{name}.*"))):
        say(f"  {path}")


@federate_app.command("renew")
@guarded
def renew_certificate(folder: Annotated[Path, typer.Argument(help="the folder of the deployment")]) -> None:
    """Renew the server's certificate; sites need nothing new."""
    from coterie.deploy.certificates import expires
    from coterie.deploy.deployment import renew

    certificate, key = renew(folder)
    say(f"the server's certificate is new and valid until {expires(certificate):%Y-%m-%d}; sites need nothing")
    say("copy these two files into the server's folder, in a way that keeps the key secret, and restart the server:")
    for path in (certificate, key):
        say(f"  {path}")
    warn_of_expiry(folder / "server")


@federate_app.command("server")
@guarded
def server(
    folder: Folder = HERE,
    proxy: Annotated[bool, typer.Option(help="let sites connect through nginx")] = True,
) -> None:
    """Run the server until Ctrl-C; resume a run that was interrupted."""
    from coterie.deploy.logs import log_to, telling
    from coterie.deploy.monitoring import monitored
    from coterie.deploy.order_lock import the_only_server
    from coterie.deploy.processes import stop_on_signals
    from coterie.deploy.server import serving, tend, watch_returns
    from coterie.deploy.server_folder import ServerFolder
    from coterie.deploy.server_health import server_health

    ended, place, said = threading.Event(), ServerFolder.of(folder), telling(tell, __name__)
    config = place.config
    log, alone = log_to(config.folder / "logs" / "server.jsonl"), the_only_server(place.home)
    with alone, log, serving(config.folder, proxy) as programs:
        stop_on_signals(ended)
        warn_of_expiry(config.folder)
        said(f"serving {len(config.sites)} sites at {config.address if proxy else f'127.0.0.1:{config.inner}'}")
        threading.Thread(target=watch_returns, args=(place, ended, said), daemon=True).start()
        with monitored(config.monitor, lambda: server_health(config.folder, place.board, programs)):
            tend(programs, ended, config.folder)


def warn_of_expiry(folder: Path) -> None:
    """Say which certificates in a folder expire soon, and what to do."""
    from coterie.deploy.certificates import expiry_warnings

    for warning in expiry_warnings(folder):
        tell(f"warning: {warning}", "yellow")


@federate_app.command("client")
@guarded
def client(
    folder: Folder = HERE,
    data: Annotated[
        Path | None, typer.Option(help="the .npz, .csv or .parquet file of this site; default: data in site.toml")
    ] = None,
    threads: Annotated[int, typer.Option(help="worker threads")] = 1,
    only_agent: Annotated[bool, typer.Option("--only-agent", help="only the agent, which has the data")] = False,
    only_node: Annotated[bool, typer.Option("--only-node", help="only Flower's node, which has the network")] = False,
) -> None:
    """Take part as a site until Ctrl-C: read the data, and answer requests that the policy allows."""
    from coterie.deploy.config import load_site

    config = load_site(folder)
    if data is not None:
        config = replace(config, data=str(data.resolve()))
    warn_of_expiry(config.folder)
    if only_node:
        from coterie.deploy.site_node import run_node

        run_node(config, tell)
        return
    from coterie.deploy import site_programs

    run = site_programs.run_agent if only_agent else site_programs.run_both
    run(config, threads, lambda site: tell(f"site {config.name} is ready: {site.what_it_has}"), tell)


@federate_app.command("run")
@guarded
@with_settings(*ABOUT_DATA)
def run(
    target: Annotated[str, typer.Argument(metavar="ALGORITHM|FILE.toml", help="e.g. 'wecfl(shots=10)'")],
    folder: Folder = HERE,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="resume the run in --out")] = False,
    deliver: Annotated[bool, typer.Option(help="hand its model over to every site at the end")] = True,
    name: Annotated[
        str | None, typer.Option(help="name the run, for a schedule: its folder is runs/NAME-TIME of the server")
    ] = None,
    earlier: Earlier = None,
    detach: Annotated[bool, typer.Option("--detach", help="do not wait for the end of the run")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Run an experiment on the federation of the server in --folder; Ctrl-C stops only the display."""
    from coterie.deploy.run_control import make_order, submit
    from coterie.deploy.run_names import dated, find_run
    from coterie.deploy.server_folder import ServerFolder
    from coterie.experiments.tracked import trackers_of
    from coterie.reporting.comparison import comparison
    from coterie.tracking.track import check_installed

    server = ServerFolder.of(folder)
    # Of a paper's settings only the training applies. Whether the sites have tables is known when they are there.
    settings, tables = settings_either_way(target, {"data": "federation", **given})
    check_installed(trackers_of(settings.track))
    if name is not None:
        require(out is None and not resume, "name", name, "given without --out and --resume, which name a folder")
        out = server.runs / dated(name)
    begin = None if earlier is None else find_run(server.runs, earlier)
    order = make_order(server, settings, out, resume, earlier=begin, tables=tables)
    submit(server, order if deliver else replace(order, deliver=False))
    if detach:
        say("the run goes on in the background; coterie federate status shows its progress")
        return
    goes_on = "the run goes on without you; coterie federate status shows its progress, stop ends it"
    with at_ctrl_c(lambda: goes_on):
        summary = _watched(server, order, quiet)
    if as_json:
        say_json(summary)
        return
    console.print(comparison({settings.algorithm: [summary]}, console))
    say(f"results are in {order.out}")


def _watched(server: ServerFolder, order: Order, quiet: bool) -> dict[str, Any]:
    """Show the progress of a submitted run to its end; return its summary with the values that a table shows.

    How many rounds there are is known once the run has begun, with its first record.
    """
    from coterie.deploy.run_control import follow
    from coterie.experiments.run_folder import CONFIG, load_rounds
    from coterie.experiments.settings import load_settings
    from coterie.experiments.summary import add_shown
    from coterie.reporting.progress import watch

    out = Path(order.out)
    shown: dict[str, Progress] = {}
    with ExitStack() as bar:

        def progress(record: dict[str, Any]) -> None:
            if not shown:
                shown["bar"] = bar.enter_context(watch(load_settings(out / CONFIG, {}), quiet=quiet))
            shown["bar"](record)

        summary = follow(server, progress, tell)
    return add_shown(summary, load_rounds(out), None)


@federate_app.command("status")
@guarded
def status(
    folder: Folder = HERE,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="keep showing it until Ctrl-C")] = False,
) -> None:
    """Show which sites are connected and have answered, the round and the clusters."""
    from coterie.deploy.certificates import expiry_warnings
    from coterie.deploy.delivery import read_ledger
    from coterie.deploy.server_folder import ServerFolder, online
    from coterie.deploy.status import read_board, status_table
    from coterie.deploy.watching import watch_status

    server = ServerFolder.of(folder)
    if watch:
        require(not as_json, "watch", "given", "given without --json, which prints one status")
        watch_status(server, console)
        return
    run_status, connections, models = read_board(server.board), online(server), read_ledger(server.ledger)
    warnings = expiry_warnings(server.folder)
    if as_json:
        say_json({"run": run_status, "online": connections, "models": models, "warnings": warnings})
        return
    console.print(status_table(run_status, connections, models, warnings))


federate_app.command("watch")(watch_federation)


@federate_app.command("deliver")
@guarded
def deliver_models(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="the name or the folder of a finished run; default: the last")
    ] = None,
    folder: Folder = HERE,
    again: Annotated[bool, typer.Option("--again", help="also to sites that have its models already")] = False,
) -> None:
    """Hand the models of a finished run over to the sites that lack them, also to sites that joined later."""
    from coterie.deploy.run_control import follow, make_delivery, submit
    from coterie.deploy.server_folder import ServerFolder

    server = ServerFolder.of(folder)
    submit(server, make_delivery(server, run, again))
    follow(server, lambda record: None, say)


@federate_app.command("models")
@guarded
def list_models(folder: Folder = HERE, as_json: AsJson = False) -> None:
    """Show the models that this site has received, with their scores here, and which one is in use."""
    store = _model_store(folder)
    versions = store.versions()
    if as_json:
        say_json([{**each.card, "version": each.name, "current": each.is_current} for each in versions])
    elif not versions:
        say(f"{store.folder} holds no model yet; a run, or coterie federate deliver at the server, brings one")
    else:
        from coterie.deploy.model_store import versions_table

        console.print(versions_table(versions))


@federate_app.command("rollback")
@guarded
def roll_back(
    version: Annotated[str | None, typer.Argument(metavar="[VERSION]", help="default: the one received before")] = None,
    folder: Folder = HERE,
) -> None:
    """Put another of the models that this site has received in use; it stays in use until a newer one arrives."""
    store = _model_store(folder)
    say(f"{store.roll_back(version)} is in use now; {store.folder / 'current'} points to it")


def _model_store(folder: Path) -> ModelStore:
    from coterie.deploy.config import load_site
    from coterie.deploy.model_store import MODELS, ModelStore

    return ModelStore(load_site(folder).folder / MODELS)


@federate_app.command("drift")
@guarded
def drift(
    run_name: Annotated[
        str | None, typer.Argument(metavar="RUN", help="a finished run, by folder or name; default: the last one")
    ] = None,
    folder: Folder = HERE,
    look: Annotated[bool, typer.Option(help="ask the sites now; --no-look shows earlier answers alone")] = True,
    as_json: AsJson = False,
) -> None:
    """Ask each site how well its model serves it now, and whether another cluster would serve it better."""
    from coterie.deploy.drift import drift_table, read_history
    from coterie.deploy.run_control import drift_order, follow, submit
    from coterie.deploy.run_names import find_run
    from coterie.deploy.server_folder import HISTORY, ServerFolder
    from coterie.deploy.status import read_board

    server = ServerFolder.of(folder)
    last = read_board(server.board)
    require(run_name is not None or last is not None, "RUN", "not given", "given, as there was no run yet")
    chosen = find_run(server.runs, run_name or str(last and last["out"]))
    if look:
        submit(server, drift_order(server, chosen))
        follow(server, lambda record: None, tell)
    lines = read_history(server.folder / HISTORY, chosen.name)
    require(bool(lines), "RUN", chosen.name, "a run that was looked at before; leave out --no-look")
    if as_json:
        say_json(lines)
        return
    console.print(drift_table(lines))


@federate_app.command("stop")
@guarded
def stop_run(folder: Folder = HERE) -> None:
    """Stop the run that goes on; its last checkpoint stays."""
    from coterie.deploy.run_control import stop
    from coterie.deploy.server_folder import ServerFolder

    stop(ServerFolder.of(folder))
    say("stopped; coterie federate run --resume --out ... goes on from the last checkpoint")


@federate_app.command("audit")
@guarded
def audit(folder: Folder = HERE, last: Annotated[int, typer.Option(help="the number of lines to show")] = 20) -> None:
    """Show what this site was asked, what left it, and how many bytes."""
    from coterie.deploy.audit import AUDIT, audit_table, read_audit
    from coterie.deploy.config import load_site

    require(last >= 1, "last", last, "at least 1")
    lines = read_audit(load_site(folder).folder / AUDIT)
    console.print(audit_table(lines[-last:]))


@federate_app.command("try")
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
            summary = _watched(found.place, order, quiet)
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
