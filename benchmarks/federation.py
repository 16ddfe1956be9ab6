"""What an exchange with four sites over Flower costs, and where the time goes: python benchmarks/federation.py

The sites, the server and nginx run on this machine, so the network costs nothing; all else is as in a deployment.
"""

from __future__ import annotations

import json
import tempfile
from datetime import datetime
from pathlib import Path

import numpy as np

from coterie.data import load
from coterie.deploy.audit import read_audit
from coterie.deploy.server import follow, make_order, submit
from coterie.deploy.trial import has_nginx, trial
from coterie.experiments.run_folder import load_rounds
from coterie.experiments.settings import Settings

MODELS = {"250 KB": "mlp(840)", "5 MB": "mlp(1100,1050)"}
ROUNDS = 6


def measure(found, name: str, model: str, out: Path) -> None:
    settings = Settings("fedavg", model=model, rounds=ROUNDS, eval_every=99, steps=1)
    submit(found.place, make_order(found.place, settings, out))
    follow(found.place, lambda record: None)
    lines = [json.loads(line) for line in (out / "exchanges.jsonl").read_text().splitlines()]
    audits = {site: read_audit(found.place.folder.parent / "sites" / site / "audit.jsonl") for site in found.sites}
    parts = []
    for line in lines[1:]:  # the first is the greeting
        for site, answered in line["answered"].items():
            asked = [each for each in audits[site] if line["at"] <= arrival(each) <= line["at"] + line["total"]]
            reached, worked = arrival(asked[0]) - line["at"], asked[0]["seconds"]
            parts.append((line["sent"], reached - line["sent"], worked, answered - reached - worked))
    sent, wait, work, back = np.median(parts, axis=0)
    trained = [line for line in lines if line["bytes_up"] > 100_000]
    seconds = np.median([record["seconds"] for record in load_rounds(out)[: ROUNDS - 3]])
    print(f"{name} ({model}): {seconds:.1f} s a round without evaluation, {len(trained)} training exchanges")
    total = np.median([line["total"] for line in trained])
    print(f"  an exchange until the last site has answered, median: {total:.1f} s")
    print(f"  of one answer, median: {sent:.2f} s to hand out all messages, {wait:.2f} s until the site's agent has")
    print(f"  its own, {work:.2f} s of work there, {back:.2f} s until the server has the answer")


def arrival(line) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


def main() -> None:
    data = load("digits").partition("iid", clients=4, seed=1)
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
