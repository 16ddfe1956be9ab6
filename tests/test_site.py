"""A site answers what its policy allows, gives the simulator's numbers, and meets every bad message with a problem."""

from __future__ import annotations

import json
import pickle
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.algorithms import algorithms, build_algorithm
from coterie.client_functions import HERE
from coterie.data import load_own
from coterie.deploy.audit import Audit, read_audit
from coterie.deploy.policy import Policy
from coterie.deploy.site_answers import Site
from coterie.deploy.site_programs import load_data
from coterie.deploy.site_schema import UnreadTable
from coterie.errors import DataError, FederationError
from coterie.models.combined import additive
from coterie.models.zoo import build_model
from coterie.protocol import message
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Contrast, Fit, Loss, Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.aggregate import with_part
from coterie.server.distances import vectors as distances
from coterie.server.loop import rounds
from coterie.server.serving import evaluate
from coterie.wire import codec
from coterie.wire import remote as runtime
from coterie.wire import requests as answering
from coterie.wire.remote import PackedReplies, Remote

TASK = Task(choose=(Loss(),), fit=(Fit(steps=2, batch=8),))
FUNCTIONS = ("class_bases(3,2)", "class_moments(10,2)", "attribute(group)", "shares_of_least_loss(smoothing=0.0001)")
LENIENT = Policy(least_examples=1, functions=tuple(f"{HERE}:{each}" for each in FUNCTIONS))


@pytest.fixture(scope="module")
def data(request):
    return request.getfixturevalue("images")(sizes=(24, 30, 18, 36))


@pytest.fixture
def make(data, tmp_path):
    def build(policy: Policy = LENIENT, client: int = 0) -> Site:
        own = data.select([client])
        return Site(own.names[0], own, policy, Audit(tmp_path / f"{own.names[0]}.jsonl"))

    return build


@pytest.fixture
def site(make):
    return make()


def request(data, asked: Task = TASK, text: str = "mlp(4)", models: int = 2, beside: int = 0, **changed) -> bytes:
    """A good request; what is changed replaces words of the header, or arrays."""
    model = build_model(text, data.shape, data.classes)
    params, buffers = model.initial(1)
    stack = Stack(np.stack([params] * models), np.stack([buffers] * models))
    mean = stack.mix(np.full((1, models), 1 / models))
    sent = Sent(stack, stack.take([0] * beside) if beside else None, mean if beside else None)
    arrays, header = codec.decode(
        answering.pack_task("run", asked, Key(1, 0), model, message.down(asked, sent, 0, model.layout))
    )
    words = {name: value for name, value in changed.items() if not isinstance(value, np.ndarray)}
    own = {name: value for name, value in changed.items() if isinstance(value, np.ndarray)}
    return codec.encode({**arrays, **own}, **{**header, **words})


def problem(site: Site, content: bytes) -> str:
    arrays, header = codec.decode(site.answer(content))
    assert not arrays
    assert header["problem"], header
    assert read_audit(site.audit.path)[-1]["outcome"] in ("refused", "failed")
    return header["problem"]


def test_a_client_without_a_cluster_works_on_the_model_for_such_clients(site, data):
    """The mean of all models, which is none of those to choose from; where clients choose there is no row yet."""
    held = Task(fit=(Fit(steps=2, terms=(Contrast(1.0, 1.0),)),))
    for asked, beside in ((held, 1), (Task(choose=(Loss(),), fit=(Fit(steps=2),)), 0)):
        packed = request(data, asked, models=3, beside=beside, row=np.array([-1]))
        arrays, header = codec.decode(site.answer(packed))
        assert header["problem"] is None
        assert "params" in arrays
    for row in (-2, 4):
        packed = request(data, held, models=3, beside=1, row=np.array([row]))
        assert "out of range; it must be -1 to 3" in problem(site, packed)
    assert "out of range; it must be 0 to 2" in problem(site, request(data, held, models=3, row=np.array([-1])))


def test_models_beside_the_clusters_must_fit_them(site, data):
    held = Task(fit=(Fit(steps=2, terms=(Contrast(1.0, 1.0),)),))
    arrays, _ = codec.decode(request(data, held, models=3, beside=1))
    params, buffers = arrays["reference_params"], arrays["unplaced_buffers"]
    two = {f"unplaced_{name}": np.repeat(arrays[f"unplaced_{name}"], 2, axis=0) for name in ("params", "buffers")}
    for changed, said in (
        ({"reference_params": params[:, :-1].copy()}, "reference_params are of shape"),
        ({"unplaced_buffers": np.zeros((2, buffers.shape[1]), np.float32)}, "unplaced_buffers of (2, 0)"),
        (two, "2 models for a client without a cluster"),
    ):
        assert said in problem(site, request(data, held, models=3, beside=1, **changed))
    alone = codec.encode(
        {name: array for name, array in arrays.items() if name != "reference_buffers"},
        **codec.decode(request(data, held, models=3, beside=1))[1],
    )
    assert "this task has" in problem(site, alone)


def test_the_global_half_of_sums_comes_once(site, data):
    """Its row is put together with each cluster half; a half of another width, or two of them, are a problem."""
    model = additive(build_model("mlp(4)", data.shape, data.classes))
    rows = [model.initial(seed) for seed in (1, 2)]
    stack = with_part(
        Stack(*map(np.stack, zip(*rows, strict=True))), Stack(*(p[None] for p in rows[0])), model.layout, "global"
    )
    task = Task(fit=(Fit(steps=2, part="cluster"),), report=Report(params="cluster"), choose=(Loss(),), sends="cluster")
    sent = message.down(task, Sent(stack), -1, model.layout)
    half = model.layout.size // 2
    assert {name: array.shape for name, array in sent.items() if "params" in name} == {
        "params": (2, half),
        "common_params": (1, half),
    }
    packed = partial(answering.pack_task, "run", task, Key(1, 0), model)
    arrays, header = codec.decode(site.answer(packed(sent)))
    assert header["problem"] is None
    assert arrays["params"].shape == (1, half)
    short = {**sent, "params": sent["params"][:, :-1].copy(), "common_params": np.zeros((1, half + 1), np.float32)}
    assert "params have" in problem(site, packed(short))
    assert "it must be one row" in problem(site, packed({**sent, "common_params": np.zeros((2, half), np.float32)}))
    assert "this task has params F32" in problem(site, packed({n: a for n, a in sent.items() if "common" not in n}))


def remote(make, data, model, policy: Policy = LENIENT) -> Remote:
    """A federation of sites behind a wall of bytes."""
    sites = [make(policy, client=i) for i in range(len(data))]
    return Remote(
        data.names, model, lambda asked: PackedReplies({i: sites[i].answer(each) for i, each in asked.items()}, {})
    )


@pytest.mark.parametrize("name", [*algorithms, "wecfl+cks", "ifca+cam(warmup=1)", "joint(pinned=true)+cks"])
def test_sites_give_the_simulator_s_models_with_every_algorithm(make, data, name):
    algorithm = build_algorithm(name, clusters=2, fit=Fit(steps=2, batch=8))
    net = algorithm.network(build_model("mlp(4)", data.shape, data.classes))
    near, far = Simulator(data, net, plan="native"), remote(make, data, net)
    ours, theirs = (list(islice(rounds(algorithm, federation, 1), 2)) for federation in (near, far))
    for a, b in zip(ours, theirs, strict=True):
        assert not b.replies.missing
        assert a.state.labels.tolist() == b.state.labels.tolist()
        np.testing.assert_allclose(a.state.stack.params, b.state.stack.params, rtol=0, atol=1e-6)
    mine, yours = (evaluate(algorithm, f, s[-1].state, 1).metrics for f, s in ((near, ours), (far, theirs)))
    np.testing.assert_allclose(mine, yours, atol=1e-5)


def test_a_method_is_refused_whose_client_function_no_site_allows(make, data):
    algorithm = build_algorithm("fedsoft(start=random)", clusters=2, fit=Fit(steps=2, batch=8))
    far = remote(make, data, build_model("mlp(4)", data.shape, data.classes), Policy(least_examples=1))
    with pytest.raises(FederationError, match=r"none of 4 clients told its shares .* policy.toml") as told:
        next(rounds(algorithm, far, 1))
    assert f"{HERE}:{FUNCTIONS[-1]}" in str(told.value)


@pytest.mark.parametrize("name", ["pacfl", "flux(warmup=0)", "given"])
def test_where_all_sites_refuse_to_describe_themselves_the_run_ends_and_says_why(make, data, name):
    """Without clusters it would go on as fedavg, and nobody would notice."""
    far = remote(make, data, build_model("mlp(4)", data.shape, data.classes), Policy(least_examples=1))
    why = r"4 clients trained in round 0 and none answered .*functions in its policy"
    with pytest.raises(FederationError, match=why):
        next(rounds(build_algorithm(name, fit=Fit(steps=2, batch=8)), far, 1))


def test_sites_tell_differences_to_their_own_models_in_blocks_of_others(make, data, monkeypatch):
    """In blocks of one model each site is sent that and its own; what leaves is how far apart the two losses are."""
    algorithm, net = build_algorithm("lcfl", fit=Fit(steps=2)), build_model("mlp(4)", data.shape, data.classes)
    monkeypatch.setattr(distances, "BLOCK_BYTES", 1)
    near, far = (list(islice(rounds(algorithm, f, 1), 2)) for f in (Simulator(data, net), remote(make, data, net)))
    assert not far[-1].missing
    assert near[-1].cost == far[-1].cost
    matrices = [done[-1].state.memory.formed.distances for done in (near, far)]
    np.testing.assert_allclose(*matrices, atol=1e-6)
    asked = [line["asked"] for line in read_audit(make().audit.path)]
    assert asked.count("report differences of losses") == 4
    assert "report losses" not in asked


def test_a_hello_describes_the_site_and_reveals_no_example(site, data):
    arrays, header = codec.decode(site.answer(answering.pack_hello("run")))
    assert not arrays
    sizes = {"train": 24, "test": 12, "validation": 0}
    assert header["problem"] is None
    assert {k: header["site"][k] for k in ("name", "shape", "classes", "class_names", "unit", *sizes)} == {
        "name": "client-0",
        "shape": [1, 8, 8],
        "classes": 4,
        "class_names": [],
        "unit": 1.0,
        **sizes,
    }


def test_what_was_asked_and_what_left_is_written_down(site, data):
    content = request(data)
    reply = site.answer(content)
    (line,) = read_audit(site.audit.path)
    assert line.pop("time").endswith("+00:00")
    assert line.pop("seconds") > 0
    assert line == {
        "run": "run",
        "kind": "task",
        "round": 0,
        "asked": "choose by Loss; train all: 2 steps of 8, the model's lr; report params of all",
        "model": "mlp(4)",
        "models": 2,
        "bytes_in": len(content),
        "outcome": "answered",
        "reason": None,
        "left": {name: list(array.shape) for name, array in codec.decode(reply)[0].items()},
        "bytes_out": len(reply),
    }
    assert line["left"]["params"] == [1, 280]


def test_nothing_leaves_that_cannot_be_written_down(site, data, tmp_path):
    site.audit.path = tmp_path / "gone" / "audit.jsonl"
    arrays, header = codec.decode(site.answer(request(data)))
    assert not arrays
    assert header == {"problem": "the site cannot write its audit log, so nothing leaves it"}


def test_the_log_is_written_before_the_reply_is_given(site, data):
    """If the reply were sent first, a site that is killed then would have sent more than its log shows."""
    before = []
    write = site.audit.write
    site.audit.write = lambda line: (before.append(line), write(line))
    site.answer(request(data))
    assert before[0]["outcome"] == "answered"
    assert before[0]["left"]


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        (Policy(reports=("losses",)), "reports"),
        (Policy(parts=("head",)), "parts"),
        (Policy(most_steps=1), "most_steps"),
        (Policy(least_examples=25), "least_examples"),
        (Policy(models=("cnn",)), "models"),
        (Policy(most_models=1), "most_models"),
        (Policy(runs=("other",)), "runs"),
    ],
)
def test_a_refusal_names_the_key_of_the_policy_and_no_engine_is_built(make, data, policy, key):
    site = make(policy)
    assert f"({key} in its policy.toml)" in problem(site, request(data))
    assert not site.models._engines
    assert read_audit(site.audit.path)[-1]["outcome"] == "refused"


def test_a_large_message_is_refused_before_it_is_read(make, data):
    small = make(Policy(largest_mb=1))
    assert "largest_mb" in problem(small, b"\0" * 1_000_001)
    assert "cannot be read" in problem(small, b"\0" * 1_000_000)


@pytest.mark.parametrize("fit", [Fit(steps=10**6), Fit(epochs=10**5)])
def test_work_without_an_end_is_refused_before_it_begins(site, data, fit):
    assert "most_steps" in problem(site, request(data, Task(fit=(fit,))))


@pytest.mark.parametrize(("name", "value"), [("steps", 10**9), ("epochs", 10**9), ("steps", 10**18)])
def test_work_that_no_honest_server_can_ask_for_is_refused_as_it_is_read(site, data, name, value):
    fit = Fit()
    object.__setattr__(fit, name, value)
    assert f"{name} is 1" in problem(site, request(data, Task(fit=(fit,))))


@pytest.mark.parametrize("text", ["os:getcwd", "site_trap:build", "coterie.models.zoo:logistic"])
def test_a_server_cannot_name_code_that_the_site_then_runs(site, data, text, tmp_path, monkeypatch):
    (tmp_path / "site_trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"text": text, "half": "", "shape": list(data.shape), "classes": data.classes}
    assert "models in its policy.toml" in problem(site, request(data, model=named))
    assert not (tmp_path / "sprung").exists()
    assert "site_trap" not in sys.modules


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"text": "mlp(1000000000)"}, "argument above"),
        ({"text": "mlp(8000,8000,8000)"}, "128568004 parameters"),
        ({"text": "tabular(depth=-1)"}, "depth is -1; it must be from 0 to 1000"),
        ({"text": "mlp(4)" + " " * 300}, "letters"),
        ({"text": "mlp("}, "never closed"),
        ({"text": "nothing"}, "models in its policy"),
        ({"text": 7}, "text of Network is 7"),
        ({"half": "other"}, "must be 'cluster' or empty"),
        ({"half": "cluster"}, "560 parameters"),
        ({"shape": [2, 8, 8]}, "this site has"),
        ({"shape": [-1, 8, 8]}, "this site has"),
        ({"shape": 8}, "shape of Network"),
        ({"classes": 3}, "this site has 4 classes"),
        ({"classes": 10**9}, "classes"),
        ({"classes": None}, "a regression"),
        ({"classes": True}, "classes of Network is True"),
        ({"more": 1}, "no 'more'"),
    ],
)
def test_a_model_that_does_not_fit_is_a_problem_and_takes_no_memory(site, data, change, expected):
    named = {"text": "mlp(4)", "half": "", "shape": list(data.shape), "classes": data.classes, **change}
    assert expected in problem(site, request(data, model=named))
    assert not site.models._engines


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"params": np.zeros((2, 280))}, "params F64"),
        ({"params": np.zeros((2, 280), np.float16)}, "params F16"),
        ({"params": np.zeros((2, 279), np.float32)}, "280 parameters"),
        ({"params": np.zeros((3, 280), np.float32)}, "as many rows"),
        ({"params": np.zeros(280, np.float32)}, "as many rows"),
        ({"params": np.zeros((0, 280), np.float32), "buffers": np.zeros((0, 0), np.float32)}, "there must be a model"),
        ({"params": np.full((2, 280), np.nan, np.float32)}, "not finite"),
        ({"params": np.full((2, 280), np.inf, np.float32)}, "not finite"),
        ({"buffers": np.zeros((2, 1), np.float32)}, "0 buffers"),
        ({"row": np.array([2])}, "out of range"),
        ({"row": np.array([-2])}, "out of range"),
        ({"row": np.array([0, 1])}, "it must name one"),
        ({"row": np.array([[0, 1]])}, "only where their outputs are mixed"),
        ({"row": np.array([0], np.int32)}, "row I32"),
        ({"row": np.array([0.0])}, "row F64"),
        ({"extra": np.zeros(3, np.float32)}, "extra F32"),
    ],
)
def test_arrays_that_are_not_those_of_a_task_are_a_problem(site, data, change, expected):
    assert expected in problem(site, request(data, **change))


def task_json(**changed) -> dict:
    return {**codec.to_json(TASK), **changed}


FIT = codec.to_json(Fit(steps=2))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"kind": "exec"}, "knows hello, task, deliver"),
        ({"kind": None}, "kind is None"),
        ({"run": 5}, "run is 5"),
        ({"run": "x" * 2000}, "run is 'xxx"),
        ({"key": [1]}, "key has 1 values"),
        ({"key": [1, "0"]}, "key is '0'"),
        ({"key": [True, 0]}, "key is True"),
        ({"key": [10**30, 0]}, "key is a huge number"),
        ({"key": {"seed": 1}}, "key is a dict"),
        ({"task": None}, "task is None"),
        ({"task": []}, "task is a list of 0"),
        ({"task": {"kind": "Popen"}}, "task is a dict"),
        ({"task": {"kind": "Fit"}}, "task is a dict"),
        ({"task": task_json(fit=[{**FIT, "steps": "10"}])}, "steps of Fit is '10'"),
        ({"task": task_json(fit=[{**FIT, "steps": None, "epochs": True}])}, "epochs of Fit is True"),
        ({"task": task_json(fit=[{**FIT, "batch": 8.0}])}, "batch of Fit is 8.0"),
        ({"task": task_json(fit=[{**FIT, "lr": 10**400}])}, "lr of Fit is a huge number"),
        ({"task": task_json(fit=[{**FIT, "steps": 0}])}, "steps is 0"),
        ({"task": task_json(fit=[codec.to_json(Loss())])}, "fit of Task is a dict"),
        ({"task": task_json(fit=[FIT] * 101)}, "101 values"),
        ({"task": task_json(fit=[FIT, FIT])}, "overlap"),
        ({"task": task_json(choose=[FIT])}, "choose of Task is a dict"),
        ({"task": task_json(pinned=[["a"]])}, "pinned of Task has 1 values"),
        ({"task": task_json(pinned=[["a", 9]])}, "out of range"),
        ({"task": task_json(sends="halves")}, "sends is 'halves'"),
        ({"task": task_json(report={"kind": "Report", "params": "toes"})}, "parts in its policy"),
        ({"task": task_json(secret=1)}, "no 'secret'"),
        ({"model": "mlp"}, "model is 'mlp'"),
    ],
)
def test_a_header_with_wrong_values_is_a_problem(site, data, change, expected):
    assert expected in problem(site, request(data, **change))


def raw(table: object, data: bytes = b"") -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


class Trap:
    """A pickle of it would write a file when it is read."""

    def __reduce__(self):
        return exec, ("open('sprung', 'w')",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        b"\xff" * 64,
        pickle.dumps(Trap()),
        raw(b"[" * 100_000),
        raw({"__metadata__": {"coterie": "[" * 100_000}}),
        raw({"__metadata__": {"coterie": "[]"}}),
        raw({"__metadata__": {"coterie": '{"kind": NaN}'}}),
        raw({"__metadata__": {"coterie": 5}}),
        raw({"__metadata__": []}),
        raw({}),
        raw([]),
        raw({"a": 1, "__metadata__": {"coterie": "{}"}}),
        raw({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "__metadata__": {"coterie": "{}"}}, b"abcd"),
        raw({"a": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}, "__metadata__": {"coterie": "{}"}}, b"a" * 8),
        raw({"__metadata__": {"coterie": '{"kind": "hello", "run": ' + "9" * 5000 + "}"}}),
    ],
)
def test_bytes_that_are_no_message_are_a_problem(site, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem(site, content)
    with pytest.raises(FederationError, match="cannot be read"):
        codec.decode(content)
    assert not Path("sprung").exists()


@pytest.mark.parametrize(
    "kind",
    [
        {"dtype": "F32", "shape": [2, 280], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2**31, 2**31, 2**31], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2, 280], "data_offsets": [0, 10**12]},
        {"dtype": "F32", "shape": [2, 280]},
    ],
)
def test_arrays_that_the_bytes_do_not_hold_are_a_problem(site, data, kind):
    """Safetensors compresses nothing, so there is no bomb: shapes must add up to the bytes of the message."""
    content = request(data)
    length = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + length])
    problem(site, raw({**table, "params": kind}, content[8 + length :]))


@settings(max_examples=150)
@given(content=st.binary(max_size=200))
def test_no_bytes_at_all_make_a_site_raise(hardy, content):
    problem(hardy, content)


@settings(max_examples=200)
@given(cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4), end=st.floats(0, 1))
def test_no_change_of_a_good_message_makes_a_site_raise(hardy, good, cuts, end):
    """Mostly the header is hit, which is the first part of the message."""
    content = bytearray(good)
    for place, value in cuts:
        content[int(place * 1100)] = value
    whole = content if end < 0.9 else content[: int(len(content) * end)]
    assert isinstance(codec.decode(hardy.answer(bytes(whole)))[1], dict)


WORDS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(name=st.sampled_from(["kind", "run", "task", "key", "model"]), value=WORDS)
def test_no_value_in_the_header_makes_a_site_raise(hardy, good, name, value):
    arrays, header = codec.decode(good)
    assert isinstance(codec.decode(hardy.answer(codec.encode(arrays, **{**header, name: value})))[1], dict)


@settings(max_examples=150)
@given(field=st.sampled_from(sorted(set(FIT) - {"kind"})), value=WORDS)
def test_no_value_in_a_pass_makes_a_site_raise(hardy, good, field, value):
    arrays, header = codec.decode(good)
    changed = codec.encode(arrays, **{**header, "task": task_json(fit=[{**FIT, field: value}])})
    assert isinstance(codec.decode(hardy.answer(changed))[1], dict)


@pytest.fixture(scope="module")
def hardy(data, tmp_path_factory):
    own = data.select([0])
    return Site("a", own, Policy(least_examples=1, most_steps=20), Audit(tmp_path_factory.mktemp("a") / "audit.jsonl"))


@pytest.fixture(scope="module")
def good(data):
    return request(data)


def test_the_good_message_of_these_tests_is_answered(hardy, good):
    assert codec.decode(hardy.answer(good))[1]["problem"] is None


def test_no_path_and_no_words_of_other_packages_leave(site, data, monkeypatch):
    def fail(*_):
        raise ValueError("secret of /home/anna/patients.npz, age 77")

    monkeypatch.setattr(answering, "answer", fail)
    expected = problem(site, request(data))
    assert expected == "the site could not do this (ValueError); the site's audit log says why"
    assert "age 77" in read_audit(site.audit.path)[-1]["reason"]

    def refuse(*_):
        raise FederationError("cannot open /home/anna/patients.npz or C:\\data\\x.npz; look there")

    monkeypatch.setattr(answering, "answer", refuse)
    assert problem(site, request(data)) == "cannot open (a path) or (a path); look there"


def test_a_training_that_fails_is_a_problem_without_its_words(images, tmp_path):
    """Batch normalisation of vectors cannot learn from a minibatch of one example; torch's words stay at the site."""
    own = images(sizes=(9,)).select([0])
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n"
        "def normed(shape, outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, outputs))\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        policy = Policy(least_examples=1, models=("own_nets:normed",))
        site = Site("a", own, policy, Audit(tmp_path / "audit.jsonl"))
        content = request(own, Task(fit=(Fit(epochs=1, batch=8),)), "own_nets:normed", models=1)
        assert problem(site, content) == "the site could not do this (RuntimeError); the site's audit log says why"
        assert "Expected more than 1 value" in read_audit(site.audit.path)[-1]["reason"]
    finally:
        sys.path.remove(str(tmp_path))


def test_only_the_last_engines_are_kept(site, data):
    for text in ("mlp(4)", "mlp(5)", "mlp(4)", "mlp(6)"):
        assert codec.decode(site.answer(request(data, text=text)))[1]["problem"] is None
    assert [network.text for network in site.models._engines] == ["mlp(4)", "mlp(6)"]


def test_a_site_is_one_client(data, tmp_path):
    with pytest.raises(FederationError, match="of 4 clients; a site is one"):
        Site("a", data, LENIENT, Audit(tmp_path / "a"))


def test_a_report_of_metrics_sends_metrics_only(site, data):
    arrays, _ = codec.decode(site.answer(request(data, Task(report=Report(None, evaluate_on="test")))))
    assert sorted(arrays) == ["examples", "metrics", "rows"]


X = np.arange(80, dtype=np.float32).reshape(40, 2)


@pytest.mark.parametrize("options", [{}, {"seed": 5, "test": 0.3, "validation": 0.25}])
def test_arrays_of_a_site_are_those_of_a_folder_with_its_name(tmp_path, options):
    folder = tmp_path / "all"
    folder.mkdir()
    np.savez(folder / "bern.npz", x=X, y=np.arange(40) % 3)
    np.savez(folder / "chur.npz", x=X + 1, y=np.arange(40) % 4)
    np.savez(tmp_path / "my file.npz", x=X, y=np.arange(40) % 3)
    together, own = load_own(folder, **options), load_data(tmp_path / "my file.npz", "bern", tmp_path, **options)
    assert own.names == ("bern",)
    same(own, together.select([0]))


def same(own, other) -> None:
    for split in ("train", "test", "validation"):
        ours, theirs = getattr(own, split), getattr(other, split)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours.x, theirs.x)
            np.testing.assert_array_equal(ours.y, theirs.y)


@pytest.mark.parametrize("options", [{}, {"seed": 5, "test": 0.3, "validation": 0.25}])
def test_a_table_of_a_site_is_read_by_the_schema_that_all_share(tmp_path, options):
    rng = np.random.default_rng(0)
    folder = tmp_path / "all"
    folder.mkdir()
    for name in ("bern", "chur"):
        words = rng.choice(["a", "b", "c"], 40)
        table = pl.DataFrame({"age": rng.integers(20, 90, 40), "ward": words, "label": rng.choice(["no", "yes"], 40)})
        table.write_csv(folder / f"{name}.csv")
    together = load_own(folder, **options)
    (tmp_path / "own.csv").write_bytes((folder / "chur.csv").read_bytes())
    assert isinstance(load_data(tmp_path / "own.csv", "chur", tmp_path, **options), UnreadTable)
    together.schema.save(tmp_path / "schema.json")
    own = load_data(tmp_path / "own.csv", "chur", tmp_path, **options)
    same(own, together.select([1]))
    assert own.class_names == ("no", "yes")


def test_a_site_may_have_seen_one_class_only(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=np.full(40, 2))
    assert load_data(tmp_path / "own.npz", "bern", tmp_path).classes == 3


def test_a_site_s_file_has_no_column_of_clients(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=np.arange(40) % 2)
    with pytest.raises(DataError, match=r"the file is one client.s; leave it out"):
        load_data(tmp_path / "own.npz", "bern", tmp_path, client="ward")
    with pytest.raises(DataError, match="there is no file"):
        load_data(tmp_path / "none.npz", "bern", tmp_path)


def test_different_messages_are_packed_up_to_a_limit_of_bytes_at_a_time(data, monkeypatch):
    """Room for two messages of four models, 4 * 280 numbers each; clients that work on the same row share one."""
    model, waves = build_model("mlp(4)", data.shape, data.classes), []
    stack = Stack(np.zeros((4, 280), np.float32), np.zeros((4, 0), np.float32))

    def exchange(requests):
        waves.append(sorted(requests))
        return PackedReplies({}, dict.fromkeys(requests, "away"))

    monkeypatch.setattr(runtime, "MOST_BYTES", 2 * stack.nbytes + 2600)
    for labels in ([0, 1, 2, 3], [0, 1, 0, 2], [2, 2, 2, 2]):
        found = Remote(data.names, model, exchange).ask(TASK, Sent(stack), np.array(labels), np.arange(4), Key(1, 0))
        assert sorted(found.missing) == sorted(data.names)
    assert waves == [[0, 1], [2, 3], [0, 1, 2], [3], [0, 1, 2, 3]]
