"""What must hold of every algorithm in the catalogue; a new one is held to it by being listed."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from itertools import islice

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.algorithms import REDUCES_TO, add_ons, algorithms, build_algorithm, ensemble, soft_vote
from coterie.data.federated import Split
from coterie.engine import plan
from coterie.errors import UnknownName, UsageError
from coterie.experiments.placement import load_trained
from coterie.protocol.message import down
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit
from coterie.runtimes.attendance import Attendance, Attended
from coterie.server import aggregate
from coterie.server.loop import rounds
from coterie.server.serving import evaluate
from coterie.textforms import first_line, parse

VARIANTS = (
    "fedopt(server=sgd,lr=0.5,momentum=0.5)",
    "fedopt(server=yogi)",
    "fedopt(server=adagrad)",
    "ifca(start=random)",
    "ifca(fresh=true)",
    "ifca(choose=race)",
    "ifca(clusters=auto)",
    "joint(clusters=auto,pinned=true)",
    "fesem(clusters=auto)+cks",
    "wecfl(clusters=auto)+cam",
    "joint(similarity=euclidean)",
    "joint(pinned=true)",
    "joint+cks",
    "wecfl(shots=1)",
    "wecfl(layer=all)",
    "fesem(layer=linear)",
    "lcfl(warmup=0,clusterer=agglomerative,start=medoid)",
    "lcfl(losses=models,start=global,server=adam)",
    "lcfl(cross=sampled)",
    "lcfl(loss=zero-one)",
    "lcfl(warmup=0,iterations=7)",
    "lcfl(loss=clipped,losses=models,cross=sampled(first=4))",
    "lcfl(cross=sampled(first=4),losses=models,warmup=0)",
    "diffnorm(warmup=2,clusterer=agglomerative(linkage=complete))",
    "gradcos(clusters=auto)",
    "briggs(metric=euclidean,linkage=ward,cut=1)",
    "pacfl(clusterer=kmedoids,p=2,angle=mean)",
    "flux(clusterer=kmedoids(clusters=2),warmup=0,dims=100,scale=true)",
    "ocfl-hdbscan(weights=uniform)",
    "ocfl(clusterer=agglomerative,p=1,server=adam)",
    "ocfl-kmeans(shots=2)",
    "sattler(minimum=0)",
    "wecfl+cks",
    "ifca+cks(others=true)",
    "ifca+con-para",
    "wecfl+con-rep",
    "fesem+con-cks",
    "wecfl+con-para+cks",
    "ifca+finetune(steps=2)",
    "ifca+cam",
    "ifca+cam(warmup=1)",
    "wecfl+cam",
    "fesem(layer=all)+cam(warmup=2,sequential=true)",
    "wecfl+cks+cam",
    "ifca+cam(alternate=true)",
    "fesem(weights=uniform)+con-para+cam(alternate=true)",
    "ifca(start=random,weights=uniform)+con-para+cam(warmup=1)",
    "fedavg-ensemble(members=2)+finetune(steps=1)",
    "vote(wecfl(shots=1),ifca)",
)
CHAINED = "wecfl(shots=1)+con-para(strength=0.3)+cks(strength=0.1,others=true)+cam(pull=0.1)+finetune(steps=2)"
CLUSTERED = [name for name in algorithms if "clusters" in signature(algorithms.find(name)).parameters]
EACH_NAME = pytest.mark.parametrize("name", list(algorithms))
EVERY = pytest.mark.parametrize("text", [*algorithms, *VARIANTS])
NEVER = {
    "local": 8,
    **dict.fromkeys(("fedavg", "fedprox", "fedopt", "fedavg-ensemble", "fedprox-ensemble", "sattler"), 1),
}
"""How many clusters of eight clients those have that form none; sattler waits longer than any run here."""

LATE = {"sattler(minimum=0)": 4}
"""How many rounds those need that have not found the groups after three."""

ARRAYS = (
    *("labels", "examples", "params", "buffers", "losses", "spreads"),
    *("metrics", "loss", "evaluations", "description"),
)


@pytest.fixture(scope="module")
def data(images):
    """Eight clients in two groups that name the same pictures differently."""
    return images()


@pytest.fixture(scope="module")
def federation(data, simulator):
    return simulator(data, threads=2)


@pytest.fixture(scope="module")
def plain(train, federation):
    """The first three rounds of an algorithm on the common federation, run once."""
    done = {}

    def run(text):
        if text not in done:
            done[text] = train(text, federation)
        return done[text]

    return run


def assert_same(value, other, tolerance=0.0, place="state"):
    """Two states, or what they are made of, are equal (bit for bit unless a tolerance is given)."""
    if isinstance(value, Stack):
        value, other = value._asdict(), other._asdict()
    elif is_dataclass(value):
        assert type(value) is type(other), place
        value, other = vars(value), vars(other)
    if isinstance(value, dict):
        assert value.keys() == other.keys(), place
        for key in value:
            assert_same(value[key], other[key], tolerance, f"{place}.{key}")
    elif value is None or isinstance(value, str):
        assert value == other, place
    else:
        np.testing.assert_allclose(value, other, rtol=0, atol=tolerance, err_msg=place)


def as_dict(state):
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    return {**values, "members": {i: as_dict(member) for i, member in enumerate(state.members)}}


def assert_same_run(one, other, tolerance=0.0):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert_same(as_dict(a.state), as_dict(b.state), tolerance, f"round {a.state.round}")


@EVERY
def test_the_same_seed_repeats_bit_for_bit_whatever_test_data_and_true_groups_are(text, train, data, simulator, plain):
    """Nothing is left to chance, and nothing is learned from what only measures."""
    rng = np.random.default_rng(5)
    other = Split(rng.normal(size=data.test.x.shape).astype(np.float32), 3 - data.test.y, data.test.offsets)
    poisoned = simulator(replace(data, test=other, groups=1 - data.groups), threads=2)
    assert_same_run(plain(text), train(text, poisoned))


@EVERY
def test_another_seed_differs_from_the_first_round_on(text, train, federation, plain):
    other = train(text, federation, 1, seed=2)
    assert not np.allclose(plain(text)[0].state.stack.params, other[0].state.stack.params)


@EVERY
def test_chunks_groups_and_threads_change_nothing_but_rounding(text, train, data, simulator, plain, monkeypatch):
    monkeypatch.setattr(aggregate, "CHUNK_BYTES", 3 * 8 * 1500)
    monkeypatch.setattr(plan, "LOCKSTEP_NUMBERS", 5000)
    assert_same_run(plain(text), train(text, simulator(data, threads=1, plan="lockstep", spill=0)), 1e-6)


@EVERY
def test_permuting_clients_permutes_labels(text, train, data, simulator, plain):
    order = [3, 6, 0, 5, 7, 2, 4, 1]
    permuted = train(text, simulator(data.select(order)))[-1].state.labels
    assert adjusted_rand_score(plain(text)[-1].state.labels[order], permuted) == 1


def assert_groups_found(text, labels, groups):
    """Two clusters, which are the groups; or as many as a method has that never clusters."""
    name = re.split(r"[(+]", text)[0]
    clusters = 2 if text in LATE or name not in NEVER else min(NEVER[name], len(labels))
    assert len(set(labels)) == clusters
    assert clusters != 2 or adjusted_rand_score(groups, labels) == 1


@EVERY
def test_whatever_clusters_finds_the_groups(text, train, federation, plain, data):
    done = train(text, federation, LATE[text]) if text in LATE else plain(text)
    assert_groups_found(text, done[-1].state.labels, data.groups)


@EVERY
def test_those_absent_keep_their_labels_unless_the_clusters_become_others(text, train, federation, flaky):
    absent = {0: {1, 6}, 1: {0, 6}, 2: {2, 3, 4}, 3: {1}}
    for done in train(text, flaky(federation, absent)):
        gone = sorted(absent[done.before.round])
        assert not set(gone) & set(done.replies.clients)
        assert {f"client-{c}" for c in gone} == set(done.replies.missing)
        split = len(done.state.stack) != len(done.before.stack)
        wanted = np.full(len(gone), UNPLACED) if split else done.before.labels[gone]
        assert np.array_equal(done.state.labels[gone], wanted)


@EVERY
def test_a_cluster_of_which_nobody_answered_keeps_its_model(text, train, federation, flaky, data):
    done = train(text, flaky(federation, {2: np.flatnonzero(data.groups == 0)}))[-1]
    empty = np.setdiff1d(np.arange(len(done.state.stack)), done.state.labels[done.replies.clients])
    algorithm, layout, models = build_algorithm(text, 2), done.replies.layout, done.before.stack
    shared, moments = algorithm.shared, done.before.moments
    if not moments:  # clusters formed in the round before, so an optimiser begins
        moments = algorithm.update(models, models, {}, np.zeros(len(models), dtype=bool))[1]
    own = np.setdiff1d(layout.numbers("all"), layout.numbers(shared) if shared else [])
    assert_same(done.state.stack.params[empty][:, own], done.before.stack.params[empty][:, own])
    assert_same({k: v[empty] for k, v in done.state.moments.items()}, {k: v[empty] for k, v in moments.items()})


@EVERY
def test_a_sample_of_clients_is_enough(text, train, federation, dressed):
    done = train(text, federation, 4, participation=0.5)
    for step in done:
        assert len(step.replies) == 4
        assert np.isfinite(step.state.stack.params).all()
        assert step.state.labels.min() >= UNPLACED
        assert step.state.labels.max() < len(step.state.stack)
    assert len({tuple(step.replies.clients) for step in done}) > 1
    algorithm = build_algorithm(text, 2)
    replies = evaluate(algorithm, dressed(federation, algorithm), done[-1].state, seed=1)
    assert replies.metrics.shape == (8, 4)


@pytest.fixture(scope="module")
def coming_and_going(train, federation):
    """The first six rounds where clients 2 and 5 join in round 2 and client 6 leaves in round 3, run once."""
    done = {}
    joins, leaves = {"client-2": 2, "client-5": 2}, {"client-6": 3}
    changing = Attended(federation, Attendance(federation.names, joins, leaves))

    def run(text):
        if text not in done:
            done[text] = changing, train(text, changing, 6)
        return done[text]

    return run


@EVERY
def test_clients_may_join_and_leave(text, coming_and_going, data):
    _, done = coming_and_going(text)
    for step in done:
        gone = np.setdiff1d(np.arange(len(data)), step.there)
        assert np.array_equal(step.replies.clients, step.there)
        assert gone.tolist() == ([2, 5] if step.before.round < 2 else [] if step.before.round < 3 else [6])
        assert np.isfinite(step.state.stack.params).all()
        if len(step.state.stack) == len(step.before.stack):
            assert np.array_equal(step.state.labels[gone], step.before.labels[gone])
    labels, there = done[-1].state.labels, step.there
    assert (labels[there] >= 0).all()
    assert_groups_found(text, labels[there], data.groups[there])
    formed = next(step for step in done if len(step.state.stack) == len(done[-1].state.stack))
    assert (labels[6] >= 0) == (6 in formed.there), "who has left keeps its label until the clusters become others"


@EVERY
@pytest.mark.parametrize("stop", [1, 2])
def test_a_run_is_resumed_before_and_after_clients_joined_bit_for_bit(text, stop, coming_and_going, train):
    changing, done = coming_and_going(text)
    begun = next(i for i, step in enumerate(done) if step.state.round >= stop)
    again = train(text, changing, 2, state=done[begun].state)
    assert_same_run(done[begun + 1 : begun + 3], again)


@EVERY
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(text, train, data, simulator, plain):
    resumed = train(text, simulator(data, threads=2), 2, state=plain(text)[0].state)
    assert_same_run(plain(text)[1:], resumed)


@EVERY
def test_test_labels_do_not_decide_which_model_a_client_is_served(text, data, simulator, plain, dressed):
    other = simulator(replace(data, test=replace(data.test, y=3 - data.test.y)), threads=2)
    state, algorithm = plain(text)[-1].state, build_algorithm(text, 2)
    both = [dressed(sim, algorithm) for sim in (simulator(data), other)]
    served = [evaluate(algorithm, sim, state, seed=1).labels.tolist() for sim in both]
    assert served[0] == served[1]


class Scales:
    """A federation that weighs every array that passes."""

    def __init__(self, inner):
        self.inner, self.weighed = inner, {"down": 0, "up": 0}

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def ask(self, task, sent, labels, clients, key):
        replies = self.inner.ask(task, sent, labels, clients, key)
        self.weighed["down"] += sum(
            a.nbytes for row in labels for a in down(task, sent, row, self.inner.model.layout).values()
        )
        self.weighed["up"] += sum(getattr(replies, a).nbytes for a in ARRAYS if getattr(replies, a) is not None)
        return replies


@EVERY
@pytest.mark.parametrize(("model", "shape"), [("mlp(4)", (1, 4, 4)), ("cnn", (1, 8, 8))])
def test_communication_cost_is_the_size_of_what_travels(text, model, shape, train, images, simulator):
    scales = Scales(simulator(images((8, 9, 10, 7), shape=shape), model, threads=1))
    done = train(text, scales, 2)
    spent = {"down": sum(r.cost.bytes_down for r in done), "up": sum(r.cost.bytes_up for r in done)}
    assert scales.weighed == spent


@EVERY
def test_steps_are_counted(text, plain):
    algorithm, steps = build_algorithm(text, 2), 1 if text.startswith("joint") else 4
    for done in plain(text)[1:]:
        members = zip((algorithm, *algorithm.members), (done.before, *done.before.members), strict=True)
        passes = sum(len(each.task(state).fit) for each, state in members)
        passes += text.count("alternate")  # the second half has an exchange of its own
        passes += (
            text.startswith("ocfl") and getattr(done.before.memory, "shots", 0) == 1 and "shots=2" in text
        )  # once more
        assert done.cost.steps == 8 * steps * passes


@EVERY
def test_training_helps(text, plain, federation, dressed):
    algorithm, (first, *_, last) = build_algorithm(text, 2), plain(text)
    sim = dressed(federation, algorithm)
    start, end = (evaluate(algorithm, sim, state, seed=1).metrics[:, 2] for state in (first.before, last.state))
    assert end.mean() < start.mean()


@pytest.mark.parametrize(("text", "simpler"), REDUCES_TO.items())
def test_reduces_to(text, simpler, plain):
    for one, other in zip(plain(text), plain(simpler), strict=True):
        assert_same(one.state.stack, other.state.stack, 1e-6)
        assert_same(one.state.labels, other.state.labels)


def test_alone_local_training_is_fedavg(train, data, simulator):
    alone = simulator(data.select([0]))
    for one, other in zip(train("local", alone), train("fedavg", alone), strict=True):
        assert_same(one.state.stack, other.state.stack, 1e-6)


def test_local_training_is_as_if_nobody_else_were_there(plain, train, data, simulator):
    for client in (0, 5):
        alone = train("local", simulator(data.select([client])))[-1].state.stack.params[0]
        np.testing.assert_allclose(plain("local")[-1].state.stack.params[client], alone, atol=1e-6)


@EACH_NAME
def test_the_docstring_begins_with_a_sentence(name):
    line = first_line(algorithms.find(name))
    assert line[0].isupper()
    assert line.endswith(".")
    assert len(line) <= 120


@EACH_NAME
def test_the_name_in_tables_is_the_text_that_was_asked_for(name):
    assert build_algorithm(name).name == name
    assert algorithms.find(name)().name in (name, f"{name}(clusters=2)")


def in_python(text, fit):
    """The algorithm that a text names, made by calls as a user of Python writes them."""
    first, *rest = parse(text)
    made = algorithms.find(first.name)(*first.args, **dict(first.kwargs), fit=fit)
    for call in rest:
        made = add_ons.find(call.name)(*call.args, **dict(call.kwargs))(made)
    return made


@pytest.mark.parametrize("text", [*algorithms, *VARIANTS, CHAINED])
def test_the_name_of_what_python_made_builds_the_same_again(text, federation, dressed):
    fit = Fit(steps=2, batch=8, lr=0.05)
    made = in_python(text, fit)
    again = build_algorithm(made.name, fit=fit)
    assert again.name == made.name
    assert [call.name for call in parse(made.name)] == [call.name for call in parse(text)]
    ran = (list(islice(rounds(each, dressed(federation, each), seed=1), 2)) for each in (made, again))
    assert_same_run(*ran)


def test_an_add_on_made_in_python_is_in_the_name_with_its_arguments():
    made = ct.finetune(epochs=1)(ct.cam(warmup=3)(ct.cks(0.3, others=True)(ct.wecfl(clusters=4, shots=2))))
    assert made.name == "wecfl(clusters=4,shots=2)+cks(strength=0.3,others=true)+cam(warmup=3)+finetune(epochs=1)"


def test_a_plus_adds_an_add_on():
    plain = ct.wecfl(clusters=4)
    assert (plain + ct.cks(strength=0.2) + ct.cam()).name == "wecfl(clusters=4)+cks(strength=0.2)+cam"
    assert (plain + ct.finetune(steps=3)).serve == ct.finetune(steps=3)(plain).serve


def test_an_ensemble_made_in_python_is_not_called_after_one_of_its_members():
    assert ensemble(ct.ifca(clusters=3), 2).name == "ensemble(ifca(clusters=3),2)"
    assert build_algorithm(soft_vote(ct.fedavg(), ct.wecfl(clusters=3)).name).name == "vote(fedavg,wecfl(clusters=3))"


def test_a_folder_of_an_algorithm_with_an_add_on_made_in_python_places_a_newcomer(tmp_path, data):
    algorithm = ct.cam()(ct.ifca(fit=Fit(steps=2, batch=8)))
    done = ct.run(algorithm, data, model="mlp(4)", rounds=1, out=tmp_path / "run", threads=1)
    assert load_trained(tmp_path / "run").assign(*data.train.of(0)) == done.assign(*data.train.of(0))


@pytest.mark.parametrize("name", CLUSTERED)
@pytest.mark.parametrize("clusters", [0, 9])
def test_impossible_numbers_of_clusters_are_refused_before_the_second_round(name, clusters, train, federation):
    with pytest.raises(UsageError, match=f"clusters is {clusters}"):
        train({"ocfl": "ocfl(clusterer=kmeans)"}.get(name, name), federation, 1, clusters=clusters)


def test_unknown_names_and_arguments_offer_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown algorithm 'wecf'; did you mean 'wecfl'\?"):
        build_algorithm("wecf")
    with pytest.raises(UnknownName, match=r"argument of wecfl 'shot'; did you mean 'shots'\?"):
        build_algorithm("wecfl(shot=3)")
    with pytest.raises(UsageError, match="start is 'nearest'; it must be farthest or random"):
        build_algorithm("ifca(start=nearest)")


def test_an_unknown_layer_offers_the_nearest(train, federation):
    with pytest.raises(UnknownName, match="did you mean 'linear'"):
        train("wecfl(layer=liner)", federation, 1)
