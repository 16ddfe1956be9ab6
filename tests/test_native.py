"""The native plan beside PyTorch: random chains in double precision, draws, refusals, switches."""

import os
from itertools import pairwise

import numpy as np
import pytest

from coterie.engine.engine import Engine
from coterie.engine.native import takes
from coterie.native.library import find_library
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Report, Task
from coterie.seeding import Key
from fuzz.chains import ChainCase, chain_case

CASES = int(os.environ.get("COTERIE_CHAINS", "500"))
"""Random chains that are tried."""

TOGETHER = 25
"""Chains of one test."""


@pytest.fixture(scope="module")
def library():
    found = find_library()
    if found is None:
        pytest.skip("there is no compiled engine: no C++ compiler when the package was installed")
    return found


def test_the_engine_is_compiled_where_there_is_a_compiler():
    from shutil import which

    if not any(map(which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler here")
    assert find_library() is not None, "make setup compiles it; python -m coterie.native.compile says why not"


@pytest.mark.parametrize("count", [1, 2, 31, 320, 5000])
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32, 2**40 + 17, 2**63 - 1])
def test_minibatches_are_drawn_as_numpy_draws_them(library, seed, count):
    wanted = np.random.Generator(np.random.PCG64(seed)).permutation(count)
    assert library.permutation(seed, count).tolist() == wanted.tolist()


def models_of(case: ChainCase) -> tuple[Sent, np.ndarray]:
    """Two models, their mean as the reference, and the model of each client.

    Nothing is as at the start, where after a shift of exactly 0 rounding decides on which side of a ReLU numbers are.
    """
    rows = [[part.astype(np.float64) for part in case.model.initial(seed)] for seed in (1, 2)]
    rng = np.random.default_rng(7)
    stack = Stack(*(np.stack(parts) for parts in zip(*rows, strict=True)))
    stack = Stack(*(part + rng.uniform(0, 0.1, part.shape) for part in stack))
    return Sent(stack, Stack(*(part.mean(0)[None] for part in stack))), np.array([0, 1, 0])


def answers(case: ChainCase, plan: str, task: Task):
    sent, labels = models_of(case)
    engine = Engine(case.model, case.data, threads=2, plan=plan)
    if plan == "native":
        assert engine.native is not None, f"no chain: {case}"
        assert takes(engine._pool("train", sent.models))
    return engine.run(task, sent, labels, np.arange(3), Key(3, 1))


def close(found, wanted, what: str, case: ChainCase) -> None:
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    apart = float(np.abs(found - wanted).max(initial=0))
    assert apart <= 1e-12 * scale, f"{what} {apart:.2g} apart: {case}"


def check_case(seed: int) -> None:
    """One pass, and the losses and metrics of the models received, by both plans."""
    case = chain_case(seed)
    trained = Task(fit=(case.fit,), report=Report("all"))
    native, torchs = (answers(case, plan, trained) for plan in ("native", "workers"))
    assert native.missing.keys() == torchs.missing.keys(), case
    assert native.clients.tolist() == torchs.clients.tolist(), case
    close(native.params, torchs.params, "parameters", case)
    close(native.buffers, torchs.buffers, "buffers", case)
    close(native.loss, torchs.loss, "losses in training", case)
    judged = Task(report=Report(None, losses=True, metrics="test"))
    native, torchs = (answers(case, plan, judged) for plan in ("native", "workers"))
    close(native.losses, torchs.losses, "losses", case)
    close(native.metrics, torchs.metrics, "metrics", case)


@pytest.mark.parametrize(("first", "last"), [*pairwise([*range(0, CASES, TOGETHER), CASES])])
def test_random_chains_give_the_numbers_of_pytorch(library, first, last):
    for seed in range(first, last):
        check_case(seed)


def test_a_fault_in_the_library_would_be_noticed(library, monkeypatch):
    """The comparison is no empty one: a slightly different rate is found in every chain that learns."""
    from coterie.engine import native

    whole = native.Training

    def other(*args, lr, **words):
        return whole(*args, lr=lr * (1 + 1e-7), **words)

    monkeypatch.setattr(native, "Training", other)
    found = 0
    for seed in range(10):
        try:
            check_case(seed)
        except AssertionError:
            found += 1
    assert found >= 8
