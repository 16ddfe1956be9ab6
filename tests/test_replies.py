"""Every number of a reply has a range, and a reply with one outside of it is a missing row that says which."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest

from coterie.client_functions import label_counts
from coterie.deploy.audit import Audit
from coterie.deploy.order import Order
from coterie.deploy.policy import Policy
from coterie.deploy.server_run import carry_out
from coterie.deploy.site_answers import Site
from coterie.deploy.status import StatusBoard
from coterie.errors import FederationError
from coterie.experiments.settings import Settings
from coterie.models.zoo import build_model
from coterie.protocol import message
from coterie.protocol.client_function import declared_shape
from coterie.protocol.message import DESCRIBED, Field, Sizes
from coterie.protocol.replies import ROWS, Replies
from coterie.protocol.report import Report, Sample
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Loss, Race, Task
from coterie.seeding import Key
from coterie.testing import Loopback
from coterie.wire import codec
from coterie.wire.remote import PackedReplies
from coterie.wire.reply_checks import open_reply, read_reply

SIZES = Sizes(train=24, test=7, validation=5)
FIT = (Fit(steps=2, batch=8),)
TASKS = {
    "race": Task(choose=(Race(),), fit=FIT),
    "sample": Task(report=Report(params=None, losses=True, sample=Sample(0, 8))),
    "bounded": Task(report=Report(params=None, losses=True, bounded="clipped", sample=Sample(0, 8))),
    "differences": Task(report=Report(params=None, losses=True, differences=True)),
    "metrics": Task(report=Report(params=None, evaluate_on="test")),
    "validation": Task(report=Report(params=None, evaluate_on="validation")),
    "metric": Task(report=Report(params=None, evaluate_on="test", metric="accuracy")),
    "description": Task(report=label_counts.report()),
}
INF = math.inf
RANGES = {
    "race": {"rows": (0, 1), "training_loss": (0, INF), "evaluations": (0, 48)},
    "sample": {"losses": (0, INF), "spreads": (0, INF)},
    "bounded": {"losses": (0, 1), "spreads": (0, 1)},
    "differences": {"losses": (0, INF)},
    "metrics": {"metrics": ((0, 0, 0, 7), (1, 1, INF, 7))},
    "validation": {"metrics": ((0, 0, 0, 5), (1, 1, INF, 5))},
    "metric": {"metrics": ((0, 0, 0, 7), (1, 1, INF, 7)), "metric": (-DESCRIBED, INF)},
    "description": {"description": (-DESCRIBED, DESCRIBED)},
}
"""What may be sent, by hand: two models, and a client of 24 train, 7 test and 5 validation examples."""

WHOLE = (0, 1, -1, 2, 5, 7, 24, 25, 48, 49, 10**6, -(10**12))
ODD = {"int64": WHOLE, "float64": (*WHOLE, 0.5, 1.0000001, -1e-300, 1e300, INF, -INF, math.nan)}


def asked(task: Task, sizes: Sizes = SIZES, classes: int | None = 10) -> message.Form:
    model = build_model("mlp(2)", (3,), classes)
    stack = Stack(*(np.stack([part] * 2) for part in model.initial(1)))
    sent = Sent(stack, stack.take([0]) if task.report.differences else None)
    described = declared_shape(task.report.describe, model, 2)
    return message.form(task, sent, model.layout, classes=classes, sizes=sizes, described=described)


def filled(field: Field) -> np.ndarray:
    """An array in the middle of nowhere: the least that each number may be, but zero where that is below."""
    return np.broadcast_to(np.maximum(field.low, 0), field.shape).astype(field.kind)


def read(task: Task, form: message.Form, **changed: np.ndarray) -> message.Arrays:
    arrays = {**{name: filled(field) for name, field in form.items()}, **changed}
    return read_reply(codec.encode(arrays, problem=None), form, task, np.int64(0))


def test_every_field_of_a_reply_has_a_range():
    """Derived from the form: a field that is new is in ROWS, and some task must ask for it."""
    forms = [asked(task) for task in TASKS.values()]
    assert {name for form in forms for name in form} == set(ROWS)
    for form in forms:
        for name, field in form.items():
            assert np.min(field.low) > -INF, name
            for wrong in (math.nan, -INF, float(np.max(field.low)) * 1.01 - 1, -2 * float(np.min(field.high)) - 1):
                assert field.outside(np.full((1, max(field.shape[-1], 1)), wrong)).any(), (name, wrong)


@pytest.mark.parametrize("kind", TASKS)
def test_what_is_accepted_is_within_the_ranges_and_what_is_within_is_accepted(kind):
    rng, task = np.random.default_rng(1), TASKS[kind]
    form, limits, accepted = asked(task), {"examples": (24, 24), **RANGES[kind]}, 0
    for _ in range(300):
        name = str(rng.choice(list(limits)))
        drawn = rng.choice(np.array(ODD[form[name].kind]), form[name].shape)
        value = np.where(rng.random(drawn.shape) < 0.5, filled(form[name]), drawn)
        low, high = limits[name]
        good = all(np.all(np.asarray(low) <= row) and np.all(row <= np.asarray(high)) for row in np.atleast_1d(value))
        accepted += good
        with nullcontext() if good else pytest.raises(FederationError, match=f" in {name}; it must be "):
            read(task, form, **{name: value})
    assert 10 < accepted < 290


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        ("race", "examples", [10**6], "sent 1000000 in examples; it must be 24"),
        ("race", "evaluations", [-1], "sent -1 in evaluations; it must be 0 to 48"),
        ("race", "evaluations", [49], "sent 49 in evaluations; it must be 0 to 48"),
        ("race", "training_loss", [math.nan], "sent nan in training_loss; it must be 0 to inf"),
        ("bounded", "losses", [[0.0, 1.5]], "sent 1.5 in losses; it must be 0 to 1"),
        ("metrics", "metrics", [[1.2, 0.5, 0.1, 7]], "sent 1.2 in metrics; it must be 0 to 1"),
        ("metrics", "metrics", [[1.0, 0.5, 0.1, 0]], "sent 0.0 in metrics; it must be 7"),
    ],
)
def test_the_reason_names_the_value_and_the_limit(kind, name, value, expected):
    form = asked(TASKS[kind])
    with pytest.raises(FederationError) as error:
        read(TASKS[kind], form, **{name: np.array(value, form[name].kind)})
    assert str(error.value) == expected


def test_a_squared_error_and_a_variance_may_be_above_one():
    form = asked(TASKS["metrics"], classes=None)
    assert read(TASKS["metrics"], form, metrics=np.array([[9.0, 4.0, 9.0, 7]]))["metrics"][0, 0] == 9
    with pytest.raises(FederationError, match=r"sent -4\.0 in metrics; it must be 0 to inf"):
        read(TASKS["metrics"], form, metrics=np.array([[9.0, -4.0, 9.0, 7]]))


def test_of_a_client_of_unknown_size_any_number_from_one_is_accepted():
    form = asked(TASKS["metrics"], sizes=message.UNKNOWN_SIZES)
    assert read(TASKS["metrics"], form, examples=np.array([99]))["examples"].tolist() == [99]
    with pytest.raises(FederationError, match="sent 0 in examples; it must be 1 to inf"):
        read(TASKS["metrics"], form, examples=np.array([0]))


@pytest.mark.parametrize("broken", [math.nan, INF, -2e10])
def test_broken_parameters_are_reported_before_the_loss_that_follows_from_them(broken):
    form = asked(TASKS["race"])
    params = np.full(form["params"].shape, broken, np.float32)
    with pytest.raises(FederationError, match="not finite or above 1e\\+10; lower the learning rate"):
        read(TASKS["race"], form, params=params, training_loss=np.array([math.nan]))


def test_a_reply_that_is_far_too_large_is_not_even_read(monkeypatch):
    """Beside its arrays it may have a header, of 1000 bytes here: rows and examples are 8 bytes each, metrics 32."""
    monkeypatch.setattr(codec, "LARGEST_HEADER", 1000)
    monkeypatch.setattr(codec, "decode", lambda content: pytest.fail("it was read"))
    with pytest.raises(FederationError, match="sent 1049 bytes; at most 1048 can be an answer"):
        read_reply(bytes(1049), asked(TASKS["metrics"]), TASKS["metrics"], np.int64(0))
    with pytest.raises(FederationError, match="sent 1001 bytes; at most 1000 can be an answer"):
        open_reply(bytes(1001))


def test_a_loss_that_is_not_a_number_is_sent_as_an_infinite_one():
    """A model that has diverged is still judged, as the bad model it is."""
    layout = build_model("mlp(2)", (3,), 10).layout
    one = np.array([0])
    sent = message.up(
        Replies(layout, one, one, one + 1, losses=np.array([[1.0, math.nan]]), training_loss=np.array([math.nan]))
    )
    assert sent["losses"].tolist() == [[1.0, INF]]
    assert sent["training_loss"].tolist() == [INF]


def test_honest_clients_of_every_task_are_believed(images):
    data = images(sizes=(24, 30))
    federation = Loopback(data, build_model("mlp(4)", data.shape, data.classes))
    stack = Stack(*(np.stack([part] * 3) for part in federation.model.initial(1)))
    tasks = [*TASKS.values(), Task(choose=(Loss(),), fit=FIT, report=Report(losses=True, evaluate_on="test"))]
    for task in tasks:
        if task.report.evaluate_on == "validation":
            continue
        sent = Sent(stack.take([0, 1]), stack.take([2])) if task.report.differences else Sent(stack)
        replies = federation.ask(task, sent, np.zeros(2, int), np.arange(2), Key(1, 0))
        assert not replies.missing, task


def with_a_liar(data, tmp_path, size, hello, **options):
    """Run a federation of which the last site reports ``size`` examples, in its replies or in its hello too."""
    clients = [data.select([i]) for i in range(len(data))]
    sites = [Site(own.names[0], own, Policy(), Audit(tmp_path / own.names[0])) for own in clients]

    def lie(content: bytes) -> bytes:
        arrays, header = codec.decode(content)
        if hello and "site" in header:
            header["site"]["train"] = size
        lies = {"examples": np.array([size])} if "examples" in arrays else {}
        return codec.encode({**arrays, **lies}, **header)

    class Sites:
        def connected(self):
            return {name: i for i, name in enumerate(data.names)}

        def __call__(self, requests):
            answers = {i: sites[i].answer(request) for i, request in requests.items()}
            return PackedReplies({i: lie(each) if i == len(data) - 1 else each for i, each in answers.items()}, {})

    settings = Settings(algorithm="fedavg", model="mlp(4)", steps=2, batch=8, rounds=2, seed=1, **options)
    order = Order(
        settings=settings.table(),
        out=str(tmp_path / "run"),
        board=str(tmp_path / "s.json"),
        sites=data.names,
        minimum=3,
        timeout=1.0,
        patience=0.2,
    )
    return carry_out(order, Sites(), StatusBoard(tmp_path / "s.json", order.run, order.out, order.sites))


def test_a_site_that_lies_about_its_size_is_missing_and_the_run_goes_on(images, tmp_path):
    """Its hello reports 36 examples, its replies a million: they would be nearly the whole mean."""
    data = images(sizes=(24, 30, 18, 36))
    missing = [record["missing"] for record in with_a_liar(data, tmp_path, 10**6, hello=False).history]
    assert missing == [{data.names[3]: "sent 1000000 in examples; it must be 36"}] * 2


def test_a_site_that_lies_in_its_hello_already_counts_as_five_of_the_median_and_no_more(images, tmp_path):
    data, options = images(sizes=(24, 30, 18, 36)), {"weight_bound": 0.0}
    lies = {"bounded": (10**9, {}), "true": (5 * 27, {}), "believed": (10**9, options), "plain": (5 * 27, options)}
    made = {}
    for name, (size, how) in lies.items():
        (tmp_path / name).mkdir()
        done = with_a_liar(data, tmp_path / name, size, hello=True, **how)
        assert not any(record.get("missing") for record in done.history)
        made[name] = done.state.stack.params
    assert np.array_equal(made["bounded"], made["true"])
    assert np.array_equal(made["bounded"], made["plain"])
    assert not np.allclose(made["bounded"], made["believed"])
