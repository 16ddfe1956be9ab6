"""What is frozen does not travel: it must have the same numbers everywhere, and whoever has others is refused."""

from __future__ import annotations

import sys
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import coterie as ct
from coterie.algorithms import build_algorithm
from coterie.cli.main import app
from coterie.deploy.audit import Audit, read_audit
from coterie.deploy.policy import Policy
from coterie.deploy.site_answers import Site
from coterie.errors import ModelError, RunFolderError
from coterie.experiments.run_folder import CONFIG, load_config
from coterie.models.given import as_model
from coterie.models.zoo import build_model
from coterie.protocol.task import Fit
from coterie.runtimes.simulator import Simulator
from coterie.server.loop import rounds
from coterie.wire.remote import PackedReplies, Remote

NETS = """
from pathlib import Path
import numpy as np
import torch
from torch import nn


def build(shape, outputs):
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU())
    trunk.load_state_dict(torch.load(Path(__file__).with_name("weights.pt")))
    return nn.Sequential(trunk.requires_grad_(False), nn.Linear(6, outputs))


def drawn(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6).requires_grad_(False), nn.Linear(6, outputs))


def elsewhere(shape, outputs):
    net = drawn(shape, outputs)
    net[1].bias.data = torch.from_numpy(np.random.default_rng().normal(size=6))
    return net
"""
FEW = {"rounds": 2, "steps": 2, "batch": 8}
TEXT = "frozen_nets:build"


@pytest.fixture
def weigh(tmp_path, monkeypatch):
    """Write other weights for the trunk of ``frozen_nets:build``."""
    (tmp_path / "frozen_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(scale: float) -> None:
        weights = {"1.weight": torch.linspace(-1, 1, 384).view(6, 64) * scale, "1.bias": torch.zeros(6)}
        torch.save(weights, tmp_path / "weights.pt")

    write(1.0)
    yield write
    sys.modules.pop("frozen_nets", None)


@pytest.fixture(scope="module")
def digits():
    return ct.load("digits").partition("rotation(0,180)", clients=4, seed=1)


class TestFingerprint:
    def test_it_is_the_same_for_the_same_numbers_and_empty_without_any(self, weigh):
        one, two = (build_model(TEXT, (1, 8, 8), 10).frozen for _ in range(2))
        assert len(one) == 16
        assert one == two
        weigh(1.0 + 1e-7)
        assert build_model(TEXT, (1, 8, 8), 10).frozen != one
        assert [build_model(text, (1, 28, 28), 10).frozen for text in ("mlp(4)", "cnn")] == ["", ""]

    def test_layers_that_are_drawn_and_frozen_are_drawn_the_same_everywhere(self, weigh):
        torch.manual_seed(1)
        one = build_model("frozen_nets:drawn", (1, 8, 8), 10)
        torch.manual_seed(2)
        two = build_model("frozen_nets:drawn", (1, 8, 8), 10)
        assert one.frozen == two.frozen
        nets = [model.with_row(*model.initial(seed)) for seed, model in enumerate((one, two))]
        assert torch.equal(nets[0][1].weight, nets[1][1].weight)
        assert not torch.equal(nets[0][2].weight, nets[1][2].weight)

    def test_frozen_numbers_of_another_generator_are_refused(self, weigh):
        with pytest.raises(ModelError, match="has other frozen numbers each time it is built; read them from a file"):
            build_model("frozen_nets:elsewhere", (1, 8, 8), 10)

    def test_whole_numbers_count_and_counters_do_not(self):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4))
        assert as_model(net, (1, 8, 8), 4).frozen == ""
        net.register_buffer("order", torch.arange(4))
        marks = {as_model(net, (1, 8, 8), 4).frozen}
        net.order = torch.arange(4) + 1
        marks.add(as_model(net, (1, 8, 8), 4).frozen)
        assert len(marks) == 2


class TestRunFolder:
    def test_a_run_is_not_resumed_loaded_or_asked_with_other_frozen_weights(self, weigh, digits, tmp_path):
        out = tmp_path / "run"
        ct.run("wecfl", digits, TEXT, clusters=2, out=out, **FEW)
        before = load_config(out)["made_by"]["frozen"]
        assert before == build_model(TEXT, (1, 8, 8), 10).frozen
        assert ct.load_run(out, digits).predict(digits.test.of(0)[0], 0).size
        np.savez(tmp_path / "new.npz", x=digits.test.of(0)[0], y=digits.test.of(0)[1])
        asked = ["assign", str(out), "--data", str(tmp_path / "new.npz")]
        assert CliRunner().invoke(app, asked).exit_code == 0
        weigh(2.0)
        now = build_model(TEXT, (1, 8, 8), 10).frozen
        for ask in (
            lambda: ct.run("wecfl", digits, TEXT, clusters=2, out=out, resume=True, **{**FEW, "rounds": 3}),
            lambda: ct.load_run(out, digits),
        ):
            with pytest.raises(
                RunFolderError, match=f"frozen part is {before}, not {now}; restore its weights"
            ) as told:
                ask()
            assert "\n" not in str(told.value)
        refused = CliRunner().invoke(app, asked)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert f"{before}, not {now}" in refused.stderr

    def test_a_run_with_the_same_weights_is_resumed(self, weigh, digits, tmp_path):
        ct.run("wecfl", digits, TEXT, clusters=2, out=tmp_path / "run", **FEW)
        again = ct.run("wecfl", digits, TEXT, clusters=2, out=tmp_path / "run", resume=True, **{**FEW, "rounds": 3})
        whole = ct.run("wecfl", digits, TEXT, clusters=2, **{**FEW, "rounds": 3})
        np.testing.assert_array_equal(again.state.stack.params, whole.state.stack.params)

    def test_a_network_with_nothing_frozen_leaves_no_word(self, digits, tmp_path):
        ct.run("fedavg", digits, "mlp(4)", out=tmp_path / "run", **FEW)
        assert "frozen" not in (tmp_path / "run" / CONFIG).read_text()


class TestSites:
    @pytest.fixture
    def sites(self, digits, tmp_path):
        policy = Policy(least_examples=1, models=(TEXT, "frozen_nets:drawn"))

        def make(client: int) -> Site:
            own = digits.select([client])
            return Site(own.names[0], own, policy, Audit(tmp_path / f"{own.names[0]}.jsonl"))

        return [make(client) for client in range(len(digits))]

    def remote(self, digits, sites, model) -> Remote:
        def exchange(asked):
            return PackedReplies({i: sites[i].answer(each) for i, each in asked.items()}, {})

        return Remote(digits.names, model, exchange)

    @pytest.mark.parametrize("text", [TEXT, "frozen_nets:drawn"])
    @pytest.mark.parametrize("name", ["wecfl", "ifca+cam(warmup=1)"])
    def test_sites_with_the_same_weights_give_the_simulators_models(self, weigh, digits, sites, name, text):
        algorithm = build_algorithm(name, clusters=2, fit=Fit(steps=2, batch=8))
        model = algorithm.network(build_model(text, digits.shape, digits.classes))
        near, far = Simulator(digits, model, plan="native"), self.remote(digits, sites, model)
        ours, theirs = (list(islice(rounds(algorithm, each, 1), 2))[-1] for each in (near, far))
        assert not theirs.missing
        np.testing.assert_array_equal(ours.state.stack.params, theirs.state.stack.params)

    def test_a_site_with_other_weights_refuses_in_one_line_that_names_both(self, weigh, digits, sites):
        model = build_model(TEXT, digits.shape, digits.classes)
        assert model.frozen, "the server's weights are read now"
        algorithm, federation = build_algorithm("fedavg", fit=Fit(steps=2)), self.remote(digits, sites, model)
        assert not next(rounds(algorithm, federation, 1)).missing
        sites[2].models._engines.clear()
        weigh(3.0)
        for step in islice(rounds(algorithm, federation, 1), 2):
            (told,) = step.missing.values()
            other = build_model(TEXT, digits.shape, digits.classes).frozen
            assert told == (
                f"the frozen part of the model '{TEXT}' is {other} here and {model.frozen} at the server; "
                "install the same weights at both"
            )
        assert read_audit(sites[2].audit.path)[-1]["outcome"] == "failed"
        assert len(sites[2].models._engines) == 1


class TestRest:
    def test_a_frozen_part_that_was_built_in_evaluation_mode_stays_in_it(self, digits):
        trunk = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)).requires_grad_(False)
        trunk[1].running_mean += 0.5
        net = nn.Sequential(trunk.eval(), nn.Flatten(), nn.BatchNorm1d(108), nn.Linear(108, 10))
        done = ct.run("fedavg", digits, net, **FEW)
        assert done.model.resting == {"0", "0.0", "0.1"}
        assert done.model.layout.buffer_size == 216
        served = done.model_for(0)
        assert torch.equal(served[0][1].running_mean, torch.full((3,), 0.5))
        assert not torch.equal(served[2].running_mean, torch.zeros(108))

    def test_a_network_that_is_whole_in_evaluation_mode_is_trained_as_ever(self):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6).requires_grad_(False), nn.Dropout(0.5), nn.Linear(6, 10))
        assert as_model(net.eval(), (1, 8, 8), 10).resting == frozenset()

    def test_a_module_that_keeps_a_part_in_evaluation_mode_is_obeyed(self, digits):
        class Kept(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(64, 10)

            def forward(self, x):
                return self.head(self.norm(x.flatten(1)))

            def train(self, mode: bool = True):
                super().train(mode)
                self.norm.eval()
                return self

        done = ct.run("fedavg", digits, Kept(), **FEW)
        assert done.model.layout.buffer_size == 0
        assert torch.equal(done.model_for(0).norm.running_mean, torch.zeros(64))
        assert not torch.equal(done.model_for(0).norm.weight, torch.ones(64))
