"""Clients may be asked for one array of a declared shape; nothing else of their data leaves them."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.client_functions import label_counts
from coterie.deploy.audit import task_summary
from coterie.deploy.policy import Policy
from coterie.errors import Refused, UsageError
from coterie.models.zoo import build_model
from coterie.protocol.client_function import declared_shape, find_client_function
from coterie.protocol.message import form
from coterie.protocol.report import Describe, Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.testing import Loopback


@ct.client_function("classes", "p")
def means(client: ct.ClientData, p: int = 2, fail: str = "") -> np.ndarray:
    """Return the mean of the first p numbers of the examples of each class; fail at a client with this many."""
    if fail and len(client.y) == int(fail):
        raise ValueError("too many\nto tell")
    flat = client.x.reshape(len(client.x), -1)[:, :p]
    return np.stack(
        [flat[client.y == k].mean(0) if (client.y == k).any() else np.zeros(p) for k in range(client.classes)]
    )


@ct.client_function("models", "latent", all_models=True, labels=False)
def features(client: ct.ClientData) -> np.ndarray:
    """Return the mean input of the last layer under every model."""
    import torch

    x = torch.from_numpy(client.x)
    return np.stack([model[:-1](x).mean(0).detach().numpy() for model in client.models])


@ct.client_function(3)
def draws(client: ct.ClientData) -> np.ndarray:
    """Return three draws."""
    return client.rng.normal(size=3)


@ct.client_function(2)
def wrong(client: ct.ClientData, what: str = "shape") -> np.ndarray:
    """Return something else than was declared."""
    return np.zeros(3) if what == "shape" else np.full(2, np.nan)


@ct.client_function("parameters")
def parameters(client: ct.ClientData) -> np.ndarray:
    """Return the parameters of the client's model."""
    return np.concatenate([p.detach().numpy().ravel() for p in client.model.parameters()])


def asked(federation, report, clients=None, fit=(), labels=None):
    who = np.arange(len(federation.names)) if clients is None else np.array(clients)
    rows = [federation.model.initial(seed) for seed in (0, 1)]
    stack = Stack(*(np.stack(part) for part in zip(*rows, strict=True)))
    labels = np.zeros_like(who) if labels is None else labels
    return federation.ask(Task(fit=fit, report=report), Sent(stack), labels, who, Key(1, 0))


@pytest.fixture(scope="module")
def data(images):
    return images((24, 30, 18))


def test_the_array_is_the_functions_of_each_clients_train_data(data, simulator):
    replies = asked(simulator(data), means.report(p=3))
    assert replies.params is None
    for client in range(3):
        x, y = data.train.of(client)
        for k in range(4):
            np.testing.assert_allclose(
                replies.description[client, k], x[y == k].reshape(-1, 64)[:, :3].mean(0), rtol=1e-6
            )


@pytest.mark.parametrize("report", [means.report(3), features.report(), draws.report(), label_counts.report()])
def test_bytes_and_simulation_give_the_same_arrays_and_costs(report, data, simulator):
    model = build_model("mlp(5)", data.shape, data.classes)
    ours, theirs = asked(simulator(data, "mlp(5)"), report), asked(Loopback(data, model), report)
    np.testing.assert_array_equal(ours.description, theirs.description)
    assert ours.cost == theirs.cost
    assert ours.cost.bytes_up == 3 * (16 + ours.description[0].nbytes)


def test_all_models_are_sent_only_where_they_are_read(data, simulator):
    one, both = (asked(simulator(data, "mlp(5)"), each.report()).cost.bytes_down for each in (draws, features))
    size = build_model("mlp(5)", data.shape, data.classes).layout.size
    assert both - one == 3 * 4 * size


def test_a_function_reads_the_model_that_its_client_has_trained(data, simulator):
    federation = simulator(data, "mlp(5)")
    found = asked(federation, Report(describe=parameters.report().describe), fit=(ct.Fit(steps=2),))
    np.testing.assert_allclose(found.description, found.params, rtol=1e-6)


def test_no_model_is_built_for_a_function_that_reads_none(data, simulator, monkeypatch):
    federation, built = simulator(data), []
    whole = type(federation.model).with_row
    monkeypatch.setattr(type(federation.model), "with_row", lambda *row: built.append(row) or whole(*row))
    asked(federation, label_counts.report())
    assert not built
    asked(federation, parameters.report())
    assert len(built) == 3


def test_draws_have_an_address(data, simulator):
    alone, together = asked(simulator(data), draws.report(), [1]), asked(simulator(data), draws.report())
    np.testing.assert_array_equal(alone.description[0], together.description[1])
    assert not np.allclose(together.description[0], together.description[1])


@pytest.mark.parametrize("kind", ["simulator", "bytes"])
def test_a_client_at_which_it_fails_is_a_missing_row_with_a_reason(kind, data, simulator):
    model = build_model("mlp(5)", data.shape, data.classes)
    federation = simulator(data, "mlp(5)") if kind == "simulator" else Loopback(data, model)
    replies = asked(federation, means.report(fail=30))
    assert replies.clients.tolist() == [0, 2]
    assert replies.missing["client-1"].endswith("failed: ValueError: too many")


@pytest.mark.parametrize(("what", "problem"), [("shape", r"shape \(3,\); \(2,\) is declared"), ("nan", "not finite")])
def test_another_shape_or_no_number_is_a_missing_row(what, problem, data, simulator):
    replies = asked(simulator(data), wrong.report(what=what))
    assert len(replies) == 0
    assert all(problem.replace("\\", "") in why for why in replies.missing.values())


def test_the_declared_shape_follows_data_model_and_arguments(data):
    model = build_model("mlp(5)", data.shape, data.classes)
    assert declared_shape(means.report(7).describe, model, 2) == (4, 7)
    assert declared_shape(features.report().describe, model, 6) == (6, 5)
    assert declared_shape(None, model, 6) == ()
    real = build_model("mlp(5)", (3,), None)
    assert declared_shape(label_counts.report().describe, real, 1) == (1,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("label_counts", "write package.module:function"),
        ("math:sqrt", "math:sqrt is no client function; declare its shape"),
        ("coterie.client_functions:label_counts(3)", "too many positional arguments"),
        ("coterie.client_functions:label_count", "no function 'label_count'"),
    ],
)
def test_what_is_no_client_function_is_refused(text, problem):
    with pytest.raises(UsageError, match=problem):
        find_client_function(text)


def test_a_shape_must_be_numbers_sizes_or_arguments(data):
    with pytest.raises(UsageError, match="has 'clases'; it may have numbers and classes, features"):
        ct.client_function("clases")(lambda client: client.y)
    model = build_model("mlp(5)", data.shape, data.classes)
    with pytest.raises(UsageError, match="p is -1 in the shape"):
        declared_shape(means.report(-1).describe, model, 1)
    with pytest.raises(UsageError, match="at most 16,777,216 numbers may leave a client"):
        declared_shape(means.report(10_000_000).describe, model, 1)


def test_a_function_inside_a_function_cannot_be_named():
    @ct.client_function(1)
    def inner(client):
        return np.zeros(1)

    with pytest.raises(UsageError, match="define it at the top of a module"):
        inner.report()


def test_a_site_runs_only_what_its_policy_lists_to_the_letter():
    task = Task(report=means.report(3))
    name = task.report.describe.function
    given = {"models": 1, "served": 1, "sizes": {"train": 50}}
    Policy(functions=(name,)).check_task(task, **given)
    for listed in ((), (name.removesuffix("(3)"),), (name.replace("3", "4"),)):
        with pytest.raises(Refused, match=r"functions in its policy.toml"):
            Policy(functions=listed).check_task(task, **given)


def test_the_audit_log_names_the_function():
    assert (
        task_summary(Task(report=label_counts.report())) == "report the array of coterie.client_functions:label_counts"
    )


def test_an_unlisted_module_is_never_imported_at_a_site(tmp_path, monkeypatch, data):
    """The policy is asked before anything of the function's package is imported."""
    (tmp_path / "trap_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from coterie.deploy.audit import Audit
    from coterie.deploy.site_answers import Site
    from coterie.wire import codec
    from coterie.wire.requests import pack_task

    model = build_model("mlp(5)", data.shape, data.classes)
    task = Task(report=Report(params=None, describe=Describe("trap_module:function")))
    params, buffers = (part[None] for part in model.initial(0))
    arrays = {"params": params, "buffers": buffers, "row": np.array([0])}
    site = Site("one", data.select([0]), Policy(), Audit(tmp_path / "audit.jsonl"))
    _, header = codec.decode(site.answer(pack_task("run", task, Key(1, 0), model, arrays)))
    assert "the client function is 'trap_module:function'; this site allows none" in header["problem"]


def test_the_form_of_a_reply_has_the_declared_array(data):
    model = build_model("mlp(5)", data.shape, data.classes)
    stack = Stack(*(part[None] for part in model.initial(0)))
    field = form(Task(report=means.report(3)), Sent(stack), model.layout, described=(4, 3))["description"]
    assert field.shape == (1, 4, 3)
    assert field.outside(np.full((1, 4, 3), np.inf)).all()
