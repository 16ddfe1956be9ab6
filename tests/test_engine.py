"""The engine against a slow reference: plain autograd, torch's own optimisers, one client after the other."""

from __future__ import annotations

import mmap
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, mean_squared_error, r2_score
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from coterie.engine import client_columns, plan
from coterie.engine import local_training as fitting
from coterie.engine.evaluation import fold
from coterie.engine.local_training import draw
from coterie.engine.terms import NOTHING, Received, gradient
from coterie.errors import DataError, UnknownName, UsageError
from coterie.models.model import Model, head_of
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Contrast, Fit, Loss, Near, Others, Proximal, Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key

KEY = Key(seed=7, round=3)
SIZES = (3, 7, 8, 20, 13)
PLAIN = Fit(steps=4, batch=8, lr=0.1, momentum=0.0)
FITS = {
    "sgd": PLAIN,
    "momentum": replace(PLAIN, momentum=0.9),
    "adam": replace(PLAIN, optimizer="adam", lr=0.01),
    "weight decay": replace(PLAIN, momentum=0.9, weight_decay=0.1),
    "adam with weight decay": replace(PLAIN, optimizer="adam", lr=0.01, weight_decay=0.1),
    "proximal": replace(PLAIN, momentum=0.9, terms=(Proximal(0.5),)),
    "rate decay": replace(PLAIN, lr_decay=0.5),
    "epochs": replace(PLAIN, steps=None, epochs=2, momentum=0.9),
    "adam over epochs": replace(PLAIN, steps=None, epochs=2, optimizer="adam", lr=0.01),
    "whole train split": replace(PLAIN, batch=100),
    "one example a step": replace(PLAIN, batch=1),
    "default rate and steps": Fit(batch=8),
    "near": replace(PLAIN, momentum=0.9, terms=(Near(0.5),)),
    "others": replace(PLAIN, terms=(Others(0.5, (0.3, 0.7)),)),
    "contrast": replace(PLAIN, momentum=0.9, terms=(Contrast(2.0, 0.1),)),
    "contrast of the head, near of the body": replace(
        PLAIN, terms=(Contrast(2.0, 0.1, part="head"), Near(0.1, "body"))
    ),
    "contrast of representations": replace(PLAIN, momentum=0.9, terms=(Contrast(2.0, 0.1, of="inputs"),)),
    "contrast of outputs": replace(PLAIN, momentum=0.9, terms=(Contrast(2.0, 0.1, of="outputs", each="example"),)),
    "contrast of each example": replace(PLAIN, terms=(Contrast(2.0, 0.1, of="inputs", each="example"),)),
    "pull": replace(PLAIN, momentum=0.9, pull=0.1),
    "pull over epochs": replace(PLAIN, steps=None, epochs=2, optimizer="adam", lr=0.01, pull=0.1),
}
HALVES = (
    replace(PLAIN, part="head", lr=0.2, steps=None, epochs=2, optimizer="adam"),
    replace(PLAIN, part="body", terms=(Proximal(0.5),), weight_decay=0.1, momentum=0.9),
)
PLANS = ("native", "single", "workers", "lockstep")


def loss_of(model, module, x, y):
    return mse_loss(module(x).squeeze(-1), y) if model.classes is None else cross_entropy(module(x), y)


def of_part(model, module, part):
    """The parameters to be trained, by name, with batch normalisation elsewhere in evaluation mode."""
    inside = set(model.layout.parts[part].tolist())
    names = {slot.name for slot in model.slots if slot.start in inside}
    for home, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train(any(name.startswith(f"{home}.") for name in names))
    return {name: p for name, p in module.named_parameters() if name in names}


def penalty(term, model, module, trained, start, stack, row, x):
    """A term as its definition says, over tensors by name; autograd finds its gradient."""
    if isinstance(term, Proximal):
        return term.strength / 2 * sum(((p - start[n]) ** 2).sum() for n, p in trained.items())
    models = [model.with_row(p, b) for p, b in zip(*stack, strict=True)]
    if isinstance(term, Contrast) and term.of != "parameters":
        see = representation if term.of == "inputs" else lambda net, batch: net(batch)
        cosines = torch.stack([similarity(see(module, x), see(m, x).detach()) for m in models]) / term.temperature
        one = cosines.mean(1).log_softmax(0) if term.each == "batch" else cosines.log_softmax(0).mean(1)
        return -term.strength * one[row]
    names = {slot.name for slot in model.slots_of(term.part)} & set(trained)
    mine = {n: trained[n] for n in names}
    fixed = [{n: p.detach() for n, p in m.named_parameters() if n in names} for m in models]
    if isinstance(term, Near):
        return term.strength / 2 * sum(((mine[n] - fixed[-1][n]) ** 2).sum() for n in names)
    if isinstance(term, Others):
        far = [sum(((mine[n] - each[n]) ** 2).sum() for n in names) for each in fixed]
        return term.strength / 2 * sum(s * d for k, (s, d) in enumerate(zip(term.shares, far, strict=True)) if k != row)
    cosines = torch.stack([dot(mine, each) / (dot(mine, mine) * dot(each, each)).sqrt() for each in fixed])
    return term.strength * -torch.log(
        torch.exp(cosines / term.temperature)[row] / torch.exp(cosines / term.temperature).sum()
    )


def dot(one, other):
    return sum((one[n] * other[n]).sum() for n in one)


def representation(module, x):
    found = []
    hook = module.get_submodule(head_of(module)).register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    module(x)
    hook.remove()
    return found[0]


def similarity(one, other):
    lengths = one.norm(dim=1).clamp_min(1e-8) * other.norm(dim=1).clamp_min(1e-8)
    return (one * other).sum(1).div(lengths)


def reference(sim, stack, row, client, fits, key=KEY):
    """One client's trained parameters and buffers, in the precision of the stack."""
    model, dtype = sim.model, torch.from_numpy(stack.params).dtype
    x, y = (torch.from_numpy(part) for part in sim.data.train.of(client))
    x, y = x.to(dtype), y if model.classes else y.to(dtype)
    received = model.with_row(stack.params[row], stack.buffers[row]).state_dict()
    result = Stack(stack.params[row].copy(), stack.buffers[row].copy())
    for number, fit in enumerate(fits):
        module = model.build().to(dtype).train()
        module.load_state_dict(received)
        trained = of_part(model, module, fit.part)
        start = {name: p.detach().clone() for name, p in trained.items()}
        lr = (model.default_lr if fit.lr is None else fit.lr) * fit.lr_decay**key.round
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[fit.optimizer]
        options = {"momentum": fit.momentum} if fit.optimizer == "sgd" else {}
        optimizer = kind(trained.values(), lr=lr, weight_decay=fit.weight_decay, **options)
        batches = draw(len(y), fit, key.generator(sim.names[client], "batches", number))
        for step in range(len(batches)):
            rows = batches.rows(step)
            loss = loss_of(model, module, x[rows], y[rows])
            for term in fit.terms:
                loss = loss + penalty(term, model, module, trained, start, stack, row, x[rows])
            before = {name: p.detach().clone() for name, p in trained.items()}
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for name, p in trained.items():
                    p += fit.pull * (start[name] - before[name])
        vectors = model.flatten(module)
        for target, vector, part in zip(result, vectors, (model.layout.part, model.layout.buffer_part), strict=True):
            target[part(fit.part)] = vector[part(fit.part)]
    return result


def make_stack(sim, dtype=np.float64, count=2):
    """Different models, with buffers that are not the initial ones."""
    rows = [sim.model.initial(seed) for seed in range(count)]
    params, buffers = (np.stack(part).astype(dtype) for part in zip(*rows, strict=True))
    return Stack(params, buffers + np.linspace(0, 0.5, buffers.size, dtype=dtype).reshape(buffers.shape))


def is_mapped(array):
    """Whether an array lies in a mapped file, at however many removes."""
    while array is not None and not isinstance(array, np.memmap | mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None


def two_zeros(count):
    """Row 0 for everyone, and everyone."""
    return np.zeros(count, dtype=np.int64), np.arange(count)


def ask(sim, task, stack, clients=None, rows=None, key=KEY):
    """The last model is at the same time the reference, where a term reads one."""
    if any(isinstance(term, Near) for fit in task.fit for term in fit.terms):
        return ask_with_reference(sim, task, stack, key)
    clients = np.arange(len(sim.names)) if clients is None else np.asarray(clients)
    return sim.ask(task, Sent(stack), clients % len(stack) if rows is None else np.asarray(rows), clients, key)


def ask_with_reference(sim, task, stack, key):
    clients = np.arange(len(sim.names))
    return sim.ask(task, Sent(stack, stack.take([-1])), clients % len(stack), clients, key)


def trained(sim, fit, stack, **options):
    return ask(sim, Task(fit=fit if isinstance(fit, tuple) else (fit,)), stack, **options).models()


def expected(sim, fits, stack):
    rows = [reference(sim, stack, c % len(stack), c, fits) for c in range(len(sim.names))]
    return Stack(*(np.stack(part) for part in zip(*rows, strict=True)))


def assert_close(found, wanted, tolerance, message=""):
    for part, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(part, other, rtol=0, atol=tolerance, err_msg=message)


def assert_as_reference(sim, fits, tolerance, dtype=np.float64):
    """Every plan trains these passes as the slow reference does."""
    stack = make_stack(sim, dtype)
    wanted = expected(sim, fits, stack)
    for kind in PLANS if sim.model.can_lockstep else PLANS[:2]:
        assert_close(trained(planned(sim, kind), fits, stack), wanted, tolerance, kind)


@pytest.fixture(scope="module")
def dense(images, simulator):
    return simulator(images(SIZES, shape=(1, 4, 4)), "mlp(6)", threads=2)


@pytest.fixture(scope="module")
def normed(images, simulator):
    return simulator(images(SIZES, shape=(1, 12, 12)), "cnn", threads=2, plan="workers")


def planned(sim, kind, **options):
    """The same federation under another plan; one client on two cores would mostly wait, as small as these are."""
    return Simulator(sim.data, sim.model, **{"threads": 1 if kind == "single" else 2, **options}, plan=kind)


class TestAgainstTheReference:
    @pytest.mark.parametrize("name", FITS)
    def test_every_plan_trains_a_dense_net_as_torch_does(self, dense, name):
        assert_as_reference(dense, (FITS[name],), 1e-10)

    @pytest.mark.parametrize("name", ["sgd", "adam", "proximal", "epochs"])
    @pytest.mark.parametrize("model", ["linear", "mlp(6)"])
    def test_every_plan_trains_a_regression_as_torch_does(self, targets, simulator, name, model):
        assert_as_reference(simulator(targets(SIZES), model), (FITS[name],), 1e-10)

    @pytest.mark.parametrize("name", ["momentum", "adam", "proximal", "rate decay", "epochs", "one example a step"])
    def test_batch_normalisation_trains_as_torch_does(self, normed, name):
        # A bias before a normalisation has gradient zero, and adam divides what rounding leaves of it by itself.
        assert_as_reference(normed, (FITS[name],), 1e-8 if name == "adam" else 1e-10)

    def test_every_plan_trains_convolutions_as_torch_does(self, images, simulator):
        sim = simulator(images((5, 9, 4), shape=(3, 32, 32)), "lenet")
        assert_as_reference(sim, (replace(PLAIN, steps=2, momentum=0.9),), 1e-10)

    @pytest.mark.parametrize(("model", "shape"), [("mlp(16)", (1, 8, 8)), ("lenet", (3, 32, 32))])
    def test_single_precision_stays_within_rounding(self, images, simulator, model, shape):
        sim = simulator(images((20, 33, 12), shape=shape), model)
        assert_as_reference(sim, (replace(PLAIN, momentum=0.9),), 1e-5, np.float32)

    def test_pooling_ties_in_single_precision_cost_at_most_a_thousandth_of_the_update(self, images, simulator):
        sim = simulator(images((40, 33, 64, 20), shape=(1, 12, 12)), "cnn")
        fit, stack = Fit(steps=5, batch=16, lr=0.01), make_stack(sim, np.float32)
        wanted = expected(sim, (fit,), stack).params
        update = np.linalg.norm(wanted - stack.params[np.arange(4) % 2], axis=1)
        for kind in ("native", "single", "workers"):
            error = np.linalg.norm(trained(planned(sim, kind), fit, stack).params - wanted, axis=1)
            assert (error / update).max() < 1e-3, kind

    @pytest.mark.parametrize("sim", ["dense", "normed"])
    def test_two_passes_on_halves_merge_as_the_reference_does(self, request, sim):
        assert_as_reference(request.getfixturevalue(sim), HALVES, 1e-10)

    def test_the_reported_loss_is_the_mean_over_minibatches(self, dense):
        """At a rate that moves nothing, over one epoch of very different lengths."""
        stack, fit = make_stack(dense), replace(PLAIN, steps=None, epochs=1, batch=4, lr=1e-30)
        wanted = []
        for client, name in enumerate(dense.names):
            x, y = (torch.from_numpy(part) for part in dense.data.train.of(client))
            module = dense.model.with_row(stack.params[client % 2], stack.buffers[client % 2])
            batches = draw(len(y), fit, KEY.generator(name, "batches", 0))
            parts = [batches.rows(step) for step in range(len(batches))]
            wanted.append(np.mean([cross_entropy(module(x[rows].double()), y[rows]).item() for rows in parts]))
        for kind in PLANS:
            found = ask(planned(dense, kind), Task(fit=(fit,)), stack).training_loss
            np.testing.assert_allclose(found, wanted, atol=1e-12, err_msg=kind)


class TestParts:
    @pytest.mark.parametrize(("part", "other"), [("head", "body"), ("body", "head")])
    def test_a_pass_on_one_half_leaves_the_other_untouched(self, normed, part, other):
        stack = make_stack(normed)
        found, received = trained(normed, replace(PLAIN, part=part), stack), stack.take(np.arange(5) % 2)
        layout = normed.model.layout
        assert np.array_equal(found.params[:, layout.part(other)], received.params[:, layout.part(other)])
        assert not np.isclose(found.params[:, layout.part(part)], received.params[:, layout.part(part)]).all()
        moved = not np.array_equal(found.buffers, received.buffers)
        assert moved == (part == "body"), "running statistics belong to the body"

    def test_every_pass_starts_from_the_received_parameters(self, dense):
        stack, layout = make_stack(dense), dense.model.layout
        alone = trained(dense, replace(PLAIN, part="body"), stack).params
        second = trained(dense, (replace(PLAIN, part="body"), replace(PLAIN, part="head")), stack).params
        assert np.array_equal(alone[:, layout.part("body")], second[:, layout.part("body")])

    def test_weight_decay_does_not_reach_the_frozen_half(self, dense):
        stack, body = make_stack(dense), dense.model.layout.part("body")
        found = trained(dense, replace(PLAIN, part="head", weight_decay=1.0, terms=(Proximal(1.0),)), stack)
        assert np.array_equal(found.params[:, body], stack.params[np.arange(5) % 2][:, body])

    def test_a_report_of_one_part_is_that_part_of_the_whole(self, normed):
        stack, fit = make_stack(normed), (PLAIN,)
        whole = ask(normed, Task(fit=fit), stack)
        head = ask(normed, Task(fit=fit, report=Report(params="head")), stack)
        assert np.array_equal(head.params, whole.part("head"))
        assert head.buffers.shape[1] == 0

    def test_without_a_fit_the_reply_is_the_received_model(self, dense):
        stack = make_stack(dense)
        assert np.array_equal(ask(dense, Task(), stack).params, stack.params[np.arange(5) % 2])

    def test_a_report_of_nothing_sends_no_parameters(self, dense):
        replies = ask(dense, Task(fit=(PLAIN,), report=Report(params=None)), make_stack(dense))
        assert replies.params is None
        assert replies.buffers is None


class TestTerms:
    @pytest.mark.parametrize("kind", PLANS)
    def test_the_proximal_term_acts_from_the_second_step_on(self, dense, kind):
        sim, stack = planned(dense, kind), make_stack(dense)

        def after(steps, strength):
            return trained(sim, replace(PLAIN, steps=steps, lr=1e-3, terms=(Proximal(strength),)), stack).params

        assert np.array_equal(after(1, 1000.0), after(1, 0.0)), "it vanishes at its anchor"
        free, held = after(2, 0.0), after(2, 1000.0)
        assert np.linalg.norm(held - free, axis=1).min() > 0.1 * np.linalg.norm(free - after(1, 0.0), axis=1).max()

    @pytest.mark.parametrize("kind", PLANS)
    @pytest.mark.parametrize(
        "term",
        [Near(1000.0), Others(1000.0, (0.5, 0.5)), Contrast(1000.0, 1.0), Contrast(1000.0, 1.0, of="inputs")],
        ids=lambda term: type(term).__name__,
    )
    def test_a_strong_term_changes_even_the_first_step(self, dense, kind, term):
        sim, stack = planned(dense, kind), make_stack(dense)
        fit = replace(PLAIN, steps=1, lr=1e-3)
        free, held = (trained(sim, replace(fit, terms=terms), stack).params for terms in ((), (term,)))
        step = np.linalg.norm(free - stack.params[np.arange(len(free)) % 2], axis=1)
        assert (np.linalg.norm(held - free, axis=1) > 3 * step)[::2].all(), "those of row 0: the reference is row 1"

    @pytest.mark.parametrize(
        ("term", "value"),
        [
            (Proximal(0.7), lambda w, start, seen, row: 0.35 * ((w - start) ** 2).sum()),
            (Near(0.7), lambda w, start, seen, row: 0.35 * ((w - seen.references[-1]) ** 2).sum()),
            (
                Others(0.7, (0.2, 0.3, 0.5)),
                lambda w, start, seen, row: sum(
                    0.35 * (0.2, 0.3, 0.5)[k] * ((w - seen.models[k]) ** 2).sum() for k in range(3) if k != row
                ),
            ),
            (
                Contrast(0.7, 0.5),
                lambda w, start, seen, row: (
                    -0.7 * torch.log_softmax(torch.cosine_similarity(w, seen.models, dim=-1) / 0.5, 0)[row]
                ),
            ),
        ],
        ids=["proximal", "near", "others", "contrast"],
    )
    @pytest.mark.parametrize("scale", [1.0, 0.05])
    def test_gradients_agree_with_autograd_and_finite_differences(self, term, value, scale):
        rng = np.random.default_rng(0)
        start, params = (torch.from_numpy(scale * rng.normal(size=(4, 6))) for _ in range(2))
        models, references = (torch.from_numpy(scale * rng.normal(size=(count, 6))) for count in (3, 2))
        seen = Received(models, torch.zeros(3, 0), references, torch.tensor([0, 1, 2, 1]), torch.ones(4) > 0)
        found = gradient(term, params, start, seen, layout=None)
        step = 1e-6 * torch.eye(6, dtype=torch.float64)
        for place, w in enumerate(params):
            of = partial(value, start=start[place], seen=seen, row=int(seen.rows[place]))
            slope = torch.stack([(of(w + e) - of(w - e)) / 2e-6 for e in step])
            np.testing.assert_allclose(found[place], slope, atol=1e-7)
            leaf = w.clone().requires_grad_()
            (exact,) = torch.autograd.grad(of(leaf), leaf)
            np.testing.assert_allclose(found[place], exact, atol=1e-12)

    def test_outputs_of_a_regression_cannot_be_contrasted(self, simulator, targets):
        sim = simulator(targets(), "mlp(4)", threads=1)
        with pytest.raises(UsageError, match="a regression has one; use of=inputs"):
            trained(sim, replace(PLAIN, terms=(Contrast(1.0, 1.0, of="outputs"),)), make_stack(sim))

    def test_terms_vanish_where_they_should(self):
        w = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 6)))
        same = Received(w.repeat(2, 1), torch.zeros(2, 0), w, torch.tensor([0]), torch.tensor([True]))
        for term in (Proximal(1.0), Near(1.0), Others(1.0, (0.5, 0.5)), Contrast(1.0, 0.1)):
            assert gradient(term, w, w, same, layout=None).abs().max() < 1e-12, term

    def test_a_client_of_no_cluster_is_drawn_to_none(self):
        w = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 6)))
        others, rows = torch.zeros(2, 0), torch.tensor([2])
        for placed in (False, True):
            seen = Received(w[:2], others, w[1:2], rows, torch.tensor([placed]))
            for term in (Contrast(1.0, 0.1), Near(1.0), Others(1.0, (0.5, 0.5))):
                assert gradient(term, w[2:], w[:1], seen, layout=None).any() == placed, term
            assert gradient(Proximal(1.0), w[2:], w[:1], seen, layout=None).any(), "it is about no cluster"

    def test_a_part_of_a_term_leaves_the_other_coordinates_alone(self, dense):
        layout = dense.model.layout
        w, mean = (torch.from_numpy(np.random.default_rng(i).normal(size=(1, layout.size))) for i in range(2))
        found = gradient(
            Near(1.0, "head"), w, w, Received(w, w, mean, torch.tensor([0]), torch.tensor([True])), layout
        )[0].numpy()
        inside = np.isin(np.arange(layout.size), layout.parts["head"])
        np.testing.assert_allclose(found[inside], (w - mean)[0].numpy()[inside])
        assert not found[~inside].any()

    def test_a_term_without_a_gradient_is_refused(self):
        with pytest.raises(NotImplementedError, match="object"):
            gradient(object(), torch.zeros(1), torch.zeros(1), NOTHING, layout=None)

    def test_the_rate_before_round_0_is_that_of_round_0(self, dense):
        stack, fit = make_stack(dense), replace(PLAIN, lr_decay=0.5, batch=100, steps=1)
        before, first = (trained(dense, fit, stack, key=Key(7, t)) for t in (-1, 0))
        np.testing.assert_allclose(before.params, first.params, atol=1e-12)


class TestIndependence:
    """A client's result is a function of its name, its data, the model it got and the address: nothing else."""

    @pytest.fixture(params=["mlp(16)", "tabular(8)", "cnn"])
    def sim(self, request, images, simulator):
        return simulator(images((20, 9, 33, 14), shape=(1, 12, 12)), request.param, threads=2)

    @pytest.fixture
    def stack(self, sim):
        return make_stack(sim, np.float32)

    def test_of_the_order_of_the_clients(self, sim, stack):
        order = np.array([2, 0, 3, 1])
        rows = order % len(stack)
        shuffled = Simulator(sim.data.select(order), sim.model, threads=2)
        found = trained(shuffled, PLAIN, stack, rows=rows)
        assert_close(found, trained(sim, PLAIN, stack).take(order), 1e-6)

    def test_of_who_else_participates(self, sim, stack):
        assert_close(trained(sim, PLAIN, stack, clients=[1, 3]), trained(sim, PLAIN, stack).take([1, 3]), 1e-6)

    @pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-12)])
    def test_of_the_threads(self, sim, dtype, tolerance):
        task, stack = Task(fit=(PLAIN,), report=Report(losses=True, evaluate_on="test")), make_stack(sim, dtype)
        one, two = (ask(planned(sim, "auto", threads=threads), task, stack) for threads in (1, 2))
        for field in ("params", "buffers", "losses", "metrics", "training_loss"):
            np.testing.assert_allclose(getattr(one, field), getattr(two, field), atol=tolerance, err_msg=field)

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize("kind", ["native", "single", "workers"])
    def test_of_the_plan(self, sim, threads, kind):
        stack = make_stack(sim)
        assert_close(trained(planned(sim, kind, threads=threads), PLAIN, stack), trained(sim, PLAIN, stack), 1e-10)

    def test_of_the_size_of_lockstep_groups(self, monkeypatch, dense):
        stack = make_stack(dense, np.float32)
        whole = trained(planned(dense, "lockstep"), PLAIN, stack)
        monkeypatch.setattr(plan, "LOCKSTEP_NUMBERS", 2 * dense.model.layout.size)
        assert_close(trained(planned(dense, "lockstep"), PLAIN, stack), whole, 1e-6)

    def test_of_where_the_replies_are_kept(self, sim, stack):
        for fit in (PLAIN, HALVES):
            spilled = trained(planned(sim, "auto", spill=0), fit, stack)
            assert is_mapped(spilled.params)
            assert_close(spilled, trained(sim, fit, stack), 0)

    def test_of_what_the_engine_did_before(self, sim, stack):
        once = trained(sim, PLAIN, stack)
        trained(sim, replace(PLAIN, part="head", optimizer="adam"), stack)
        assert_close(trained(sim, PLAIN, stack), once, 0)

    def test_of_torch_s_global_generator(self, sim, stack):
        once = trained(sim, PLAIN, stack)
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        assert_close(trained(planned(sim, "auto"), PLAIN, stack), once, 0)
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_but_another_round_or_seed_draws_other_minibatches(self, sim, stack):
        once = trained(sim, PLAIN, stack).params
        for key in (Key(7, 4), Key(8, 3)):
            assert not np.allclose(trained(sim, PLAIN, stack, key=key).params, once)


def test_dropout_is_at_work_while_training_and_off_in_evaluation(images, simulator):
    data = images(SIZES, shape=(1, 4, 4))
    off, on = (simulator(data, f"tabular(8,dropout={p})", threads=1) for p in ("0.0", "0.5"))
    stack = make_stack(off)
    assert not np.allclose(trained(on, PLAIN, stack).params, trained(off, PLAIN, stack).params)
    clients = np.arange(len(data))
    np.testing.assert_allclose(on.engine.cross_losses(stack, clients), off.engine.cross_losses(stack, clients))


def test_a_cumulative_mean_of_batch_statistics_does_not_depend_on_who_trained_before(images):
    data = images((16, 24, 8, 32), shape=(6,))
    model = Model(
        "user's", lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 4)), (6,), 4
    )
    sim = Simulator(data, model, threads=1)
    stack = make_stack(sim, np.float32)
    assert_close(trained(sim, PLAIN, stack, clients=[3]), trained(sim, PLAIN, stack).take([3]), 0)


class Branching(nn.Module):
    """A net that cannot be batched over clients: it looks at its data to decide what to do."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(x if x.sum() > 0 else 2 * x)


class Recurrent(nn.Module):
    """A net with a layer that torch cannot batch over clients."""

    def __init__(self):
        super().__init__()
        self.cells = nn.GRU(2, 3, batch_first=True)
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        return self.head(self.cells(x.view(-1, 3, 2))[0][:, -1])


@pytest.mark.parametrize("build", [Branching, Recurrent])
def test_a_net_that_cannot_be_batched_over_clients_is_trained_one_by_one(images, build):
    model = Model("user's", build, (6,), 4).check()
    sim = Simulator(images(SIZES, shape=(6,)), model, threads=2)
    assert not model.can_lockstep
    stack = make_stack(sim)
    assert_close(trained(sim, PLAIN, stack), expected(sim, (PLAIN,), stack), 1e-10)


class TestEvaluation:
    def direct(self, sim, stack, client, row, split="train", first=None):
        x, y = (torch.from_numpy(part[:first]) for part in getattr(sim.data, split).of(client))
        with torch.no_grad():
            outputs = sim.model.with_row(stack.params[row], stack.buffers[row])(x.to(torch.from_numpy(stack.params)))
        return outputs, y

    @pytest.mark.parametrize("first", [None, 2])
    @pytest.mark.parametrize("sim", ["dense", "normed"])
    def test_cross_losses_are_those_of_a_direct_loop(self, request, sim, first):
        sim = request.getfixturevalue(sim)
        stack = make_stack(sim, count=3)
        clients = np.array([0, 2, 3])
        wanted = [
            [cross_entropy(*self.direct(sim, stack, c, row, first=first)).item() for row in range(3)] for c in clients
        ]
        np.testing.assert_allclose(sim.engine.cross_losses(stack, clients, first), wanted, atol=1e-12)

    def test_reported_losses_are_those_of_the_models_received(self, dense):
        stack = make_stack(dense)
        replies = ask(dense, Task(fit=(PLAIN,), report=Report(losses=True)), stack)
        np.testing.assert_array_equal(replies.losses, dense.engine.cross_losses(stack, np.arange(5)))

    @pytest.mark.parametrize("first", [None, 3])
    def test_a_client_chooses_the_model_of_least_loss(self, dense, first):
        stack = make_stack(dense, count=4)
        replies = ask(dense, Task(choose=(Loss(examples=first),)), stack, rows=[0] * 5)
        losses = dense.engine.cross_losses(stack, np.arange(5), first)
        assert np.array_equal(replies.rows, losses.argmin(axis=1))
        assert len(set(replies.rows)) > 1, "the case must have something to choose"
        assert np.array_equal(replies.params, stack.params[replies.rows])
        assert replies.cost.evaluations == 4 * sum(min(n, first or n) for n in SIZES)

    def test_the_first_examples_may_choose_another_model_than_all(self, dense):
        stack = make_stack(dense, count=4)
        chosen = [ask(dense, Task(choose=(Loss(examples=b),)), stack).rows.tolist() for b in (1, None)]
        assert chosen[0] != chosen[1]

    def test_ties_go_to_the_lowest_number(self, dense):
        best = make_stack(dense, count=4)
        twice = best.take([0, 1, 2, 3, 0, 1, 2, 3])
        labels = ask(dense, Task(choose=(Loss(),)), twice, rows=[7] * 5).rows
        assert np.array_equal(labels, ask(dense, Task(choose=(Loss(),)), best).rows)

    def test_a_negative_weight_chooses_the_worst(self, dense):
        stack = make_stack(dense, count=4)
        labels = ask(dense, Task(choose=(Loss(weight=-1.0),)), stack).rows
        assert np.array_equal(labels, dense.engine.cross_losses(stack, np.arange(5)).argmax(axis=1))

    def test_a_client_trains_the_model_it_chose(self, dense):
        stack = make_stack(dense, count=3)
        replies = ask(dense, Task(choose=(Loss(),), fit=(PLAIN,)), stack, rows=[0] * 5)
        assert_close(replies.models(), trained(dense, PLAIN, stack, rows=replies.rows), 1e-12)

    @pytest.mark.parametrize("split", ["train", "test"])
    @pytest.mark.parametrize("sim", ["dense", "normed"])
    def test_classification_metrics_are_those_of_scikit_learn(self, request, sim, split):
        sim = request.getfixturevalue(sim)
        stack = make_stack(sim)
        replies = ask(sim, Task(report=Report(params=None, evaluate_on=split)), stack)
        for client, row in enumerate(replies.metrics):
            outputs, y = self.direct(sim, stack, client, client % 2, split)
            guess = outputs.argmax(1)
            scores = [accuracy_score(y, guess), f1_score(y, guess, average="macro"), cross_entropy(outputs, y).item()]
            np.testing.assert_allclose(row, [*scores, len(y)], atol=1e-12)

    def test_regression_metrics_give_error_and_r2(self, targets, simulator):
        sim = simulator(targets(SIZES), "linear", threads=2)
        stack = make_stack(sim)
        replies = ask(sim, Task(report=Report(params=None, evaluate_on="test")), stack)
        for client, (error, variance, loss, examples) in enumerate(replies.metrics):
            outputs, y = self.direct(sim, stack, client, client % 2, "test")
            guess = outputs.squeeze(-1)
            assert error == pytest.approx(mean_squared_error(y, guess), abs=1e-10)
            assert 1 - error / variance == pytest.approx(r2_score(y, guess), abs=1e-6)
            assert loss == pytest.approx(error, abs=1e-12)
            assert examples == len(y)

    def test_a_label_never_seen_nor_guessed_does_not_count_in_macro_f1(self):
        truth, guess = np.array([0, 0, 1, 4, 4, 4]), np.array([0, 1, 1, 4, 4, 2])
        found = client_columns.macro_f1(guess, truth, np.array([0, 3, 6]), classes=5)
        wanted = [f1_score(truth[part], guess[part], average="macro") for part in (slice(3), slice(3, 6))]
        np.testing.assert_allclose(found, wanted)

    def test_metrics_after_training_are_those_of_the_trained_model(self, dense):
        stack = make_stack(dense)
        after = ask(dense, Task(fit=(PLAIN,), report=Report(evaluate_on="test")), stack)
        again = ask(dense, Task(report=Report(params=None, evaluate_on="test")), after.models(), rows=np.arange(5))
        np.testing.assert_allclose(after.metrics, again.metrics, atol=1e-12)

    def test_a_split_that_does_not_exist_is_an_error_with_a_remedy(self, dense):
        with pytest.raises(DataError, match="--validation"):
            ask(dense, Task(report=Report(evaluate_on="validation")), make_stack(dense))


class TestFolding:
    def test_folded_normalisation_is_the_same_function(self, normed, images):
        stack, x = make_stack(normed, np.float32), torch.from_numpy(images((64,), shape=(1, 12, 12)).train.x)
        module = normed.model.with_row(stack.params[1], stack.buffers[1])
        folded = fold(module)
        assert not any(isinstance(layer, nn.BatchNorm2d) for layer in folded)
        with torch.no_grad():
            torch.testing.assert_close(folded(x), module(x), rtol=0, atol=1e-5)

    def test_a_sequence_with_its_own_forward_keeps_it(self):
        class Doubled(nn.Sequential):
            def forward(self, x):
                return 2 * super().forward(x)

        module, x = Doubled(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).eval(), torch.ones(1, 1, 2, 2)
        torch.testing.assert_close(fold(module)(x), module(x))

    def test_normalisation_without_running_statistics_is_left_alone(self):
        module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)).eval()
        x = torch.rand(4, 1, 2, 2)
        torch.testing.assert_close(fold(module)(x), module(x))


class Scaled(nn.Module):
    """Parameters of four dimensions that are no convolution kernels, with gradients in another memory order."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 3, 4, 4) + torch.arange(48.0).view(1, 3, 4, 4) / 48)
        self.mix = nn.Parameter(torch.linspace(-1, 1, 3 * 4 * 4 * 5).view(5, 3, 4, 4))

    def forward(self, x):
        return torch.einsum("bchw,ochw->bo", x * self.scale, self.mix)


@pytest.mark.parametrize("kind", ["native", "single", "workers"])
@pytest.mark.parametrize(
    "build", [Scaled, lambda: nn.Sequential(nn.ConvTranspose2d(3, 5, 4), nn.Flatten(), nn.Linear(245, 5))]
)
def test_tensors_of_four_dimensions_train_as_torch_does(images, kind, build):
    data = images((16, 16), shape=(3, 4, 4), classes=5)
    sim = Simulator(data, Model("mine", build, data.shape, 5), plan=kind)
    assert_as_reference(sim, (replace(PLAIN, momentum=0.9, weight_decay=0.1),), 1e-10)


class TestBrokenClients:
    def test_a_diverged_model_is_never_chosen(self, dense):
        stack = make_stack(dense, np.float32)
        stack.params[0] = np.nan
        replies = ask(dense, Task(choose=(Loss(),), report=Report(params=None)), stack)
        assert set(replies.rows.tolist()) == {1}

    def test_a_client_with_a_diverged_model_is_judged_all_the_same(self, dense):
        stack = make_stack(dense, np.float32)
        stack.params[:] = np.nan
        replies = ask(dense, Task(report=Report(params=None, evaluate_on="test")), stack)
        assert len(replies) == len(dense.names)
        assert np.isfinite(replies.metrics[:, 0]).all()

    def test_a_client_whose_training_fails_is_a_missing_row_and_the_others_go_on(self, images):
        """Batch normalisation of vectors cannot learn from a minibatch of one example."""
        data = images(sizes=(9, 8, 16))

        def build():
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))

        sim = Simulator(data, Model("mine", build, data.shape, 4))
        replies = sim.ask(Task(fit=(Fit(epochs=1, batch=8),)), Sent(make_stack(sim, count=1)), *two_zeros(3), KEY)
        assert replies.clients.tolist() == [1, 2]
        assert "ValueError" in replies.missing["client-0"]

    @pytest.mark.parametrize(("parts", "told"), [(("all", "head"), "overlap"), (("nose",), "unknown part")])
    def test_impossible_passes_are_refused(self, dense, parts, told):
        task = Task(fit=tuple(Fit(part=part) for part in parts))
        with pytest.raises(UsageError, match=told):
            ask(dense, task, make_stack(dense))

    def test_a_client_whose_training_diverges_is_a_missing_row_with_a_reason(self, images, simulator):
        data = images((12, 12, 12), shape=(4,))
        data.train.x[12:24] *= 1e30
        sim = simulator(data, "mlp(4)", threads=1)
        replies = ask(sim, Task(fit=(replace(PLAIN, lr=1.0),)), make_stack(sim, np.float32))
        assert replies.clients.tolist() == [0, 2]
        assert replies.params.shape[0] == len(replies.rows) == len(replies.training_loss) == 2
        assert "learning rate" in replies.missing["client-1"]


class TestPlans:
    def test_small_dense_nets_go_in_lockstep_and_convolutions_to_workers(self, dense, normed):
        assert plan.make_plan("auto", dense.model, 100, 2).kind == "lockstep"
        assert plan.make_plan("auto", normed.model, 100, 2).kind == "workers"
        assert plan.make_plan("auto", normed.model, 1, 2).kind == "single"

    def test_lockstep_is_declined_where_layers_look_across_the_batch(self, normed):
        assert plan.make_plan("lockstep", normed.model, 10, 2).kind == "workers"

    def test_an_unknown_plan_offers_the_nearest(self, dense):
        with pytest.raises(UnknownName, match="did you mean 'lockstep'"):
            plan.make_plan("lock-step", dense.model, 10, 2)

    @pytest.mark.parametrize("threads", [0, 10_000])
    def test_impossible_threads_are_refused_with_the_limit(self, dense, threads):
        with pytest.raises(UsageError, match=rf"threads is {threads}; it must be between 1 and \d+"):
            planned(dense, "auto", threads=threads)

    def test_clients_of_similar_length_share_a_lockstep_group(self, dense):
        work = fitting.Work(
            model=dense.model,
            pool=dense.engine._pool("train", make_stack(dense)),
            names=dense.names,
            sent=None,
            rows=None,
            clients=np.arange(5),
            key=KEY,
            out=None,
        )
        groups = fitting.groups(work, replace(PLAIN, steps=None, epochs=1, batch=4), 2)
        assert sorted(np.concatenate(groups).tolist()) == list(range(5))
        assert [sorted(SIZES[i] for i in group) for group in groups] == [[13, 20], [7, 8], [3]]


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("epochs", 0), ("batch", 0), ("lr", 0.0), ("lr", float("nan")), ("momentum", 1.0),
     ("weight_decay", -1.0), ("lr_decay", 0.0), ("optimizer", "lion")],
)  # fmt: skip
def test_an_impossible_fit_names_its_value_and_the_limit(field, value):
    with pytest.raises(UsageError, match=rf"is .*{value}.*must be"):
        Fit(**{field: value})


def test_of_steps_and_epochs_together_whichever_is_less_is_trained():
    fit = Fit(steps=7, epochs=2, batch=10)
    assert [fit.minibatches(examples) for examples in (5, 30, 31, 1000)] == [2, 6, 7, 7]
