"""``coterie watch``: the page of a run or a comparison, live in a browser on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import at_ctrl_c, guarded
from coterie.terminal import say, tell

if TYPE_CHECKING:
    from coterie.watching.view import Watched

Host = Annotated[str, typer.Option(help="the address of the page; only this machine's own is allowed")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="the port of the page (8710, or the next free one)")]
Open = Annotated[bool, typer.Option("--open", help="open the page in your browser")]
LOOPBACK = "127.0.0.1"

ends_with_the_page = at_ctrl_c(lambda: "the page has ended; what it showed goes on")
"""Ctrl-C is how such a command is ended, also while it begins: nothing else stops."""


@guarded
@ends_with_the_page
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run or a comparison; it may come later")],
    host: Host = LOOPBACK,
    port: Port = None,
    open_page: Open = False,
) -> None:
    """Show a run or a comparison while it goes on, as a page in the browser; Ctrl-C ends only the page."""
    _leave_cores()
    from coterie.watching.run_watch import watch_folder

    watched = watch_folder(run)
    if not run.exists():
        tell(f"{run} does not exist yet; the page waits for it")
    show_live(watched, str(run), host, port, open_page)


@guarded
@ends_with_the_page
def watch_federation(
    folder: Annotated[Path, typer.Option(help="the folder of the server, or of a site")] = Path(),
    host: Host = LOOPBACK,
    port: Port = None,
    open_page: Open = False,
) -> None:
    """Show a federation as a page in the browser: at its server the run and all sites, at a site what it was asked."""
    _leave_cores()
    from coterie.deploy.config import SITE
    from coterie.deploy.server_watch import ServerWatch
    from coterie.deploy.site_watch import SiteWatch

    watched = SiteWatch.of(folder) if (folder / SITE).is_file() else ServerWatch.of(folder)
    show_live(watched, str(folder.resolve()), host, port, open_page)


def _leave_cores() -> None:
    """Let numerical libraries take one thread, before they are loaded: the run that is watched needs the cores."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def show_live(watched: Watched, name: str, host: str, port: int | None, open_page: bool) -> None:
    """Serve a live page until Ctrl-C."""
    import webbrowser

    from coterie.watching.serving import check_loopback, serve

    def ready(address: str) -> None:
        say(f"{name} is shown at {address} until Ctrl-C")
        if open_page:
            webbrowser.open(address)

    check_loopback(host)
    serve(watched, port, ready)
