"""The native plan beside PyTorch: random chains in double precision, draws, refusals, switches."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import coterie.native.library as library_module
from coterie.engine.engine import Engine
from coterie.engine.native import takes
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.native.chain import chain_of
from coterie.native.compile import SOURCE, CannotCompile, compile_engine, is_current
from coterie.native.library import find_library
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.terminal import warn_once
from fuzz.chains import ChainCase, chain_case

CASES, MORE = 150, 500
"""Random chains that are tried, always and by make check-slow and make sanitize."""

TOGETHER = 25
"""Chains of one test."""


@pytest.fixture
def digits(images):
    return images((12, 9, 15), shape=(1, 8, 8))


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
    close(native.training_loss, torchs.training_loss, "losses in training", case)
    judged = Task(report=Report(None, losses=True, evaluate_on="test"))
    native, torchs = (answers(case, plan, judged) for plan in ("native", "workers"))
    close(native.losses, torchs.losses, "losses", case)
    close(native.metrics, torchs.metrics, "metrics", case)


@pytest.mark.parametrize(("first", "last"), [*pairwise([*range(0, CASES, TOGETHER), CASES])])
def test_random_chains_give_the_numbers_of_pytorch(library, first, last):
    for seed in range(first, last):
        check_case(seed)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "last"), [*pairwise([*range(CASES, MORE, TOGETHER), MORE])])
def test_more_random_chains_give_the_numbers_of_pytorch(library, first, last):
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


class TestWithoutTheLibrary:
    """A machine without a compiler, and a user who turns the library off."""

    def test_pytorch_takes_over_and_it_is_said_once(self, digits, monkeypatch, caplog):
        monkeypatch.setattr(library_module, "FILE", Path("/nowhere/engine.so"))
        monkeypatch.delenv(library_module.SWITCH, raising=False)
        library_module._load.cache_clear()
        warn_once.cache_clear()
        model = build_model("mlp(3)", digits.shape, digits.classes)
        with caplog.at_level("WARNING"):
            engines = [Engine(model, digits, threads=1) for _ in range(2)]
        library_module._load.cache_clear()
        assert [engine.native for engine in engines] == [None, None]
        (line,) = caplog.messages
        assert "python -m coterie.native.compile" in line

    def test_it_can_be_turned_off_without_a_word(self, digits, monkeypatch, caplog):
        monkeypatch.setenv("COTERIE_NATIVE", "off")
        assert Engine(build_model("mlp(3)", digits.shape, digits.classes), digits, threads=1).native is None
        assert not caplog.messages

    def test_a_compiler_that_fails_is_no_error_of_the_installation(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CXX", "false")
        with pytest.raises(CannotCompile, match="refused"):
            compile_engine(tmp_path / "engine.so")
        monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
        with pytest.raises(CannotCompile, match="cannot be started"):
            compile_engine(tmp_path / "engine.so")
        assert list(tmp_path.iterdir()) == []

    def test_it_is_compiled_again_only_if_a_source_is_newer(self, tmp_path):
        engine = tmp_path / "engine.so"
        assert not is_current(engine)
        engine.touch()
        assert is_current(engine)
        older = min(each.stat().st_mtime for each in SOURCE.iterdir()) - 1
        os.utime(engine, (older, older))
        assert not is_current(engine)


@pytest.mark.parametrize("target", ["avx2", "baseline"])
def test_other_instruction_sets_give_the_same_numbers(library, target, monkeypatch):
    monkeypatch.setenv("COTERIE_NATIVE", target)
    for seed in range(12):
        check_case(seed)


class TestChains:
    """What is a chain of known layers, and what is left to PyTorch."""

    @pytest.mark.parametrize(
        "layers",
        [
            [nn.Conv2d(1, 2, 3, groups=1, dilation=2), nn.Flatten(), nn.LazyLinear(3)],
            [nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.LazyLinear(3)],
            [nn.Flatten(), nn.Linear(64, 3), nn.Softplus()],
            [nn.MaxPool2d(3, ceil_mode=True), nn.Flatten(), nn.LazyLinear(3)],
            [nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3)],
            [nn.Flatten(), nn.Linear(64, 8).requires_grad_(False), nn.Linear(8, 3)],
            [nn.Linear(8, 3), nn.Flatten(), nn.LazyLinear(3)],
        ],
    )
    def test_other_layers_are_left_to_pytorch(self, layers):
        assert chain_of(Model("other", lambda: nn.Sequential(*layers), (1, 8, 8), 3)) is None

    def test_a_subclass_may_compute_anything(self):
        class Odd(nn.Linear):
            def forward(self, x):
                return -super().forward(x)

        assert chain_of(Model("odd", lambda: nn.Sequential(nn.Flatten(), Odd(64, 3)), (1, 8, 8), 3)) is None

    def test_a_hook_may_do_anything(self):
        def build():
            net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
            net[1].register_forward_hook(lambda layer, inputs, out: out * 2)
            return net

        assert chain_of(Model("hooked", build, (1, 8, 8), 3)) is None

    @pytest.mark.parametrize(
        "text", ["mlp", "logistic", "tabular", "cnn", "lenet", "cnn-joint", "cnn-lcfl", "tiny-vgg"]
    )
    def test_the_networks_of_the_papers_are_chains(self, text):
        assert chain_of(build_model(text, (1, 28, 28), 10)) is not None
