"""What a round with three sites over Flower costs, and where the time goes: python benchmarks/federation.py

The sites, the server and nginx run on this machine, so the network costs nothing; all else is as in a deployment.
"""

from __future__ import annotations

import json
import os
import tempfile
from datetime import datetime
from pathlib import Path

import numpy as np

from coterie.data import load
from coterie.deploy.audit import read_audit
from coterie.deploy.run_control import follow, make_order, submit
from coterie.deploy.trial import has_nginx, trial
from coterie.experiments.run_folder import load_rounds
from coterie.experiments.settings import Settings

MODELS = {"4 KB": "mlp(13)", "250 KB": "mlp(840)", "5 MB": "mlp(1100,1050)"}
SITES, ROUNDS = 3, 12


def measure(found, name: str, model: str, out: Path) -> None:
    settings = Settings("fedavg", model=model, rounds=ROUNDS, steps=1)
    used: list[float] = []
    submit(found.place, make_order(found.place, settings, out))
    follow(found.place, lambda record: used.append(processor_seconds()))
    lines = [json.loads(line) for line in (out / "exchanges.jsonl").read_text().splitlines()]
    audits = {site: read_audit(found.place.folder.parent / "sites" / site / "audit.jsonl") for site in found.sites}
    parts = []
    for line in lines[1:]:  # the first is the greeting
        for site, answered in line["answered"].items():
            asked = [each for each in audits[site] if line["at"] <= arrival(each) <= line["at"] + line["total"]]
            reached, worked = arrival(asked[0]) - line["at"], asked[0]["seconds"]
            parts.append((line["sent"], reached - line["sent"], worked, answered - reached - worked))
    sent, wait, work, back = np.median(parts, axis=0)
    seconds = [record["seconds"] for record in load_rounds(out)[1:]]
    low, middle, high = np.quantile(seconds, [0, 0.5, 1])
    print(f"{name} ({model}): {middle:.2f} s a round (training, evaluation), {low:.2f} to {high:.2f}")
    print(f"  {(used[-1] - used[0]) / (len(used) - 1):.2f} s of processor time a round, all programs together")
    print(f"  exchange of {np.median([line['total'] for line in lines[1:]]):.2f} s until the last site has answered")
    print(f"  of one answer, median: {sent:.2f} s to hand out all messages, {wait:.2f} s until the site's agent has")
    print(f"  its own, {work:.2f} s of work there, {back:.2f} s until the server has the answer")


def processor_seconds() -> float:
    """Return the processor time that all programs below this one have used; those that have ended are not counted."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = stat.parent.name, stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(number)] = int(rest[1])
        seconds[int(number)] = (int(rest[11]) + int(rest[12])) / os.sysconf("SC_CLK_TCK")

    def is_below(process: int) -> bool:
        return process in parents and (parents[process] == os.getpid() or is_below(parents[process]))

    return sum(own for process, own in seconds.items() if is_below(process))


def arrival(line) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


def main() -> None:
    data = load("digits").partition("iid", clients=SITES, seed=1)
    print(f"{SITES} sites, {ROUNDS} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    with (
        tempfile.TemporaryDirectory(prefix="coterie-") as folder,
        trial(data, Path(folder) / "f", has_nginx()) as found,
    ):
        for name, model in MODELS.items():
            measure(found, name, model, Path(folder) / slug(model))


def slug(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum())


if __name__ == "__main__":
    main()
