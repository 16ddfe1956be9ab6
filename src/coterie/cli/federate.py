"""The commands of ``coterie federate``: run the same algorithms on a real federation.

As in ``cli.main``, modules that take long to import are imported by the commands that use them: Flower's node of a
site needs none of them.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.federate_try import try_out
from coterie.cli.following import watched
from coterie.cli.options import (
    AsJson,
    Earlier,
    Out,
    Quiet,
    at_ctrl_c,
    guarded,
    settings_either_way,
    with_settings,
)
from coterie.cli.watch import watch_federation
from coterie.deploy.order import ABOUT_DATA
from coterie.errors import require
from coterie.terminal import console, say, say_json, tell

if TYPE_CHECKING:
    from coterie.deploy.model_store import ModelStore

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
        summary = watched(server, order, quiet)
    if as_json:
        say_json(summary)
        return
    console.print(comparison({settings.algorithm: [summary]}, console))
    say(f"results are in {order.out}")


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


federate_app.command("try")(try_out)
