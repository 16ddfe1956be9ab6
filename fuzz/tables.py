"""TOML files: an experiment, a site, its policy, a federation; valid ones with a strange value or damaged text."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import tomli_w

from coterie.deploy.deployment import write_deployment
from coterie.experiments.settings import Settings
from coterie.reporting.listing import catalogue
from fuzz import strange
from fuzz.files import arrays, pictures, write_good
from fuzz.judge import Case, command

EXPERIMENT = Settings(
    "wecfl", clients=5, clusters=2, partition="iid", model="mlp(4)", rounds=1, steps=1, threads=1, lr=0.1
).table()

WHICH = {"site.toml": "sites/a", "policy.toml": "sites/a", "federation.toml": "server"}
"""The folder of each file of a deployment."""

COMMANDS = {
    "site.toml": (["audit"], ["client", "--only-agent"], ["client"], ["client", "--only-node"]),
    "policy.toml": (["client", "--only-agent"], ["client"]),
    "federation.toml": (["status"], ["server"], ["server", "--no-proxy"], ["stop"], ["run", "fedavg"], ["run", "ifca"]),
}


def prepare(place: Path) -> None:
    """A deployment of two sites with data."""
    write_deployment(place / "deployment", ["a", "b"])
    site = place / "deployment" / "sites" / "a"
    (site / "data.npz").write_bytes(arrays(**pictures()))
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace('data = ""', 'data = "data.npz"'))


def make(rng: Random, prepared: Path) -> Case:
    """An experiment file that is run, or a file of a deployment that a command of it reads."""
    if rng.random() < 0.5:
        return _experiment(rng)
    name = rng.choice(sorted(WHICH))
    shutil.copytree(prepared / "deployment", "federation")
    path = Path("federation", WHICH[name], name)
    path.write_bytes(_damaged(rng, path.read_text()))
    words = ["federate", *rng.choice(COMMANDS[name]), "--folder", str(path.parent)]
    if name == "federation.toml" and rng.random() < 0.3:
        words = ["federate", *rng.choice((["add-site", "federation", "c"], ["renew", "federation"]))]
    return Case(f"coterie {' '.join(words)} with {path}: {path.read_bytes()[:6000]!r}", command(words))


def _experiment(rng: Random) -> Case:
    write_good(Path())
    said: dict[str, Any] = {**EXPERIMENT, "algorithm": rng.choice(list(catalogue("algorithms")))}
    path = Path("x.toml")
    path.write_bytes(_damaged(rng, tomli_w.dumps(said)))
    words = [rng.choice(("run", "run", "run", "compare", "tune")), "x.toml", "--quiet", "--out", "out"]
    words += {"compare": ["--seeds", "1"], "tune": ["--tries", "1"]}.get(words[0], [])
    return Case(f"coterie {' '.join(words)} with x.toml: {path.read_bytes()!r}", command(words))


def _damaged(rng: Random, good: str) -> bytes:
    """A TOML file with a strange value, a strange key, or damage to its text or its bytes."""
    match rng.randrange(5):
        case 0:
            return strange.damaged_bytes(rng, good.encode())
        case 1:
            return strange.damaged_text(rng, good).encode("utf-8", "surrogatepass")
    held = tomllib.loads(good)
    for _ in range(rng.choice((1, 1, 2))):
        found = strange.damaged_value(rng, held)
        held = found if isinstance(found, dict) else held
    try:
        return tomli_w.dumps(held).encode("utf-8", "surrogatepass")
    except TypeError:
        return good.encode() + b"x = \xff"
