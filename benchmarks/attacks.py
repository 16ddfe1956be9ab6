"""What attackers cost the honest clients, by method and defence: `python benchmarks/attacks.py`.

Forty clients of rotated digits. Attackers, spread evenly over the groups, send in place of their update 100 times of
it (boast), its opposite (flip), ten times its opposite (flip10), or noise of ten times its length (noise). Shown is
by how many points the honest clients' mean accuracy, over the seeds, is below that of the same clients without attack
and defence, with one attacker / with eight; "ended" where a run of some seed did, since nobody was left who could send
finite numbers. With ``--claim`` attackers also say that they have so many examples. What is in the file already is not
run again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from coterie.errors import FederationError
from coterie.experiments import building
from coterie.experiments.records import facts_of
from coterie.experiments.session import Session
from coterie.experiments.settings import Settings
from coterie.models.zoo import build_model
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent
from coterie.protocol.task import Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.typing import Array

Attack = Callable[[Array, np.random.Generator], Array]
ROUNDS = 24
METHODS = ("fedavg", "ifca", "wecfl", "ocfl-hdbscan", "sattler")
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {"norm_bound": 0.0},
    "bound": {},
    **{rule: {"robust": rule} for rule in ("median", "trimmed(0.2)", "krum(1)", "geometric-median")},
}


def noise(update: Array, generator: np.random.Generator) -> Array:
    """Noise of ten times the update's length."""
    drawn = generator.normal(size=update.shape)
    return drawn * (10 * np.linalg.norm(update) / np.linalg.norm(drawn))


ATTACKS: dict[str, Attack] = {
    "boast": lambda update, generator: 100 * update,
    "flip": lambda update, generator: -update,
    "flip10": lambda update, generator: -10 * update,
    "noise": noise,
}


@dataclass(frozen=True)
class Case:
    """One run: method, what attackers do, how many they are, the defence, the seed, what they say of their size."""

    method: str
    attack: str
    attackers: int
    defence: str
    seed: int
    claim: int | None = None
    weight_bound: float = 0.0

    def lies(self, clients: int) -> Array:
        """Which of so many clients attack."""
        found = np.zeros(clients, dtype=bool)
        found[np.arange(self.attackers) * clients // max(1, self.attackers)] = True
        return found


class Attacked:
    """A federation some of whose clients attack whenever they are asked for a model."""

    def __init__(self, inner: Federation, case: Case) -> None:
        self.inner, self.case = inner, case

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def ask(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Replies:
        """What the clients send; attackers send something else."""
        replies = self.inner.ask(task, sent, rows, clients, key)
        if not task.fit or replies.params is None:
            return replies
        params, lies = np.array(replies.params), self.case.lies(len(self.inner.names))[replies.clients]
        for i in np.flatnonzero(lies):
            start = sent.rows.params[replies.rows[i]]
            generator = key.generator(self.inner.names[replies.clients[i]], "attack")
            params[i] = start + ATTACKS[self.case.attack](params[i] - start, generator)
        examples = replies.examples if self.case.claim is None else np.where(lies, self.case.claim, replies.examples)
        return replace(replies, params=params, examples=examples)


def accuracies(case: Case) -> list[float]:
    """The accuracy of every client at the end; none where attackers brought the run to an early one."""
    how = {"weight_bound": case.weight_bound, **DEFENCES[case.defence]}
    settings = Settings(case.method, rounds=ROUNDS, seed=case.seed, eval_every=ROUNDS, **how)
    data = building.build_data(settings)

    def reach(network: Any) -> Any:
        return Attacked(Simulator(data, network, settings.threads), case)

    model = build_model(settings.model, data.shape, data.classes)
    session = Session(building.build_algorithm(settings), facts_of(data), model, settings, reach)
    try:
        return [row["accuracy"] for row in session.train(None, False, None).trained.members]
    except FederationError:
        return []


def cases(methods: list[str], seeds: int, claim: int | None, weight_bound: float) -> Iterator[Case]:
    """All runs of a table."""
    kinds = [("boast", 0), *product(ATTACKS, (1, 8))]
    for method, defence, seed, kind in product(methods, DEFENCES, range(1, seeds + 1), kinds):
        yield Case(method, *kind, defence, seed, claim, weight_bound)


def run_all(wanted: list[Case], out: Path) -> dict[Case, list[float]]:
    """The accuracies of all cases; each is written down when it is done."""
    lines = out.read_text().splitlines() if out.exists() else []
    done = {Case(**line["case"]): line["accuracies"] for line in map(json.loads, lines)}
    out.parent.mkdir(parents=True, exist_ok=True)
    for case in wanted:
        if case not in done:
            done[case] = accuracies(case)
            with out.open("a") as file:
                file.write(json.dumps({"case": vars(case), "accuracies": done[case]}) + "\n")
    return done


def cost(case: Case, done: dict[Case, list[float]], seeds: int) -> str:
    """By how many points honest clients do worse than without attack and defence, in the mean over the seeds."""
    each = [replace(case, seed=seed) for seed in range(1, seeds + 1)]
    if not all(done[one] for one in each):
        return "ended"
    honest = ~case.lies(len(done[case]))
    peace = [replace(one, attack="boast", attackers=0, defence="none") for one in each]
    lost = [np.mean(np.subtract(done[b], done[a])[honest]) for a, b in zip(each, peace, strict=True)]
    return f"{100 * float(np.mean(lost)):.1f}"


def table(wanted: list[Case], seeds: int, done: dict[Case, list[float]]) -> Table:
    """The points lost with one attacker and, after the stroke, with eight; as Markdown."""
    methods = dict.fromkeys(case.method for case in wanted)
    claims = wanted[0].claim, wanted[0].weight_bound
    made = Table(box=MARKDOWN)
    for title in ("method", "attack", *DEFENCES):
        made.add_column(title, no_wrap=True)
    for method, attack in product(methods, ("none", *ATTACKS)):
        kinds = [("boast", 0)] if attack == "none" else [(attack, 1), (attack, 8)]
        cells = (
            " / ".join(cost(Case(method, *kind, defence, 1, *claims), done, seeds) for kind in kinds)
            for defence in DEFENCES
        )
        made.add_row(method, attack, *cells)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=METHODS, help=", ".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/attacks.jsonl"))
    parser.add_argument("--claim", type=int, help="attackers say that they have so many examples")
    parser.add_argument("--weight-bound", type=float, default=0.0)
    chosen = parser.parse_args()
    wanted = list(cases(chosen.methods, chosen.seeds, chosen.claim, chosen.weight_bound))
    Console(width=160).print(table(wanted, chosen.seeds, run_all(wanted, chosen.out)))


if __name__ == "__main__":
    main()
