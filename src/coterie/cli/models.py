"""The commands that use the models of a finished run: predictions for a file, and folders for use elsewhere."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from coterie.cli.options import guarded
from coterie.errors import UsageError
from coterie.terminal import errors, say, tell

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")]


@guarded
def predict(
    run: RunPath,
    data: Annotated[Path, typer.Option(help="the rows: a table like the run's, or .npz with x; labels may lack")],
    client: Annotated[str | None, typer.Option(help="predict with the model of this client")] = None,
    keep: Annotated[str, typer.Option(help="columns to write beside the predictions, separated by commas")] = "",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="a .csv file (default: standard output)")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="how a table becomes arrays, where RUN holds no schema.json")
    ] = None,
) -> None:
    """Predict every row of a file: class and probabilities, or the number in its unit.

    Without --client each row is predicted by the model of the client that its column names; a file without that column
    is a newcomer's, who is placed in a cluster first.
    """
    from coterie.api.predictions import BadRows, predict_file
    from coterie.data import Schema
    from coterie.experiments.served_run import load_served_run
    from coterie.files import write_atomically

    if out is not None and not out.parent.is_dir():
        raise UsageError(f"{out} cannot be written: there is no folder {out.parent}; make it first, or name another")
    if out is not None and out.suffix.lower() not in ("", ".csv"):
        raise UsageError(f"out is {out}, and predictions are written as .csv; name it {out.with_suffix('.csv')}")
    kept = tuple(name.strip() for name in keep.split(",") if name.strip())
    try:
        by = None if schema is None else Schema.load(schema)
        found = predict_file(load_served_run(run), data, client=client, keep=kept, schema=by)
    except BadRows as error:
        for problem in error.problems:
            tell(f"problem: {problem}", "red")
        raise
    for said in found.said:
        tell(said, "yellow" if said.startswith("warning") else None)
    if out is None:
        sys.stdout.write(found.as_csv().decode())
        sys.stdout.flush()
    else:
        write_atomically(out, found.as_csv())
        say(f"{len(found.rows)} predictions are in {out}")


@guarded
def export(
    run: RunPath,
    client: Annotated[str | None, typer.Option(help="the model of this client")] = None,
    cluster: Annotated[int | None, typer.Option(help="the model of this cluster")] = None,
    every: Annotated[bool, typer.Option("--all", help="every model, with a list of which client has which")] = False,
    format: Annotated[str, typer.Option(help="onnx, torch or safetensors")] = "onnx",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="a new folder (default: exported-...)")] = None,
) -> None:
    """Write a model as a folder for use elsewhere: model, schema, metrics, model card, and a script that predicts."""
    from coterie.api.exports import export_run
    from coterie.experiments.served_run import load_served_run

    show = partial(track, description="exporting", console=errors, transient=True, disable=not errors.is_terminal)
    folder = export_run(load_served_run(run), out, client=client, cluster=cluster, every=every, kind=format, show=show)
    about = "clients.csv says which client has which model" if every else "README.md says what it is, and how to use it"
    say(f"exported to {folder}; {about}")
