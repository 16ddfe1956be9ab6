"""What must hold of every algorithm in the catalogue; a new one is held to it by being listed."""

from __future__ import annotations

import re
from inspect import signature
from itertools import islice

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.algorithms import REDUCES_TO, add_ons, algorithms, build_algorithm, ensemble, soft_vote
from coterie.engine import plan
from coterie.errors import UnknownName, UsageError
from coterie.experiments.placement import load_trained
from coterie.protocol.task import Fit
from coterie.server import aggregate
from coterie.server.clustering import advice, probe
from coterie.server.loop import rounds
from coterie.testing.contract import (
    CHECKS,
    Case,
    bytes_give_the_same_numbers,
    counted_and_weighed,
    layout_changes_only_rounding,
    same,
    same_run,
    the_name_builds_it_again,
)
from coterie.testing.federations import images
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
    "vote(clove,stocfl)",
    "clove(clusters=auto,weights=uniform)",
    "clove+cks",
    "stocfl(strength=0,weights=uniform)",
    "stocfl+cks",
    "fedsoft(clusters=auto)",
    "fedsoft(start=random,interval=1,smoothing=0)",
    "fedsoft+cks",
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


ELSEWHERE = (layout_changes_only_rounding, bytes_give_the_same_numbers, the_name_builds_it_again)
"""Checks that are made below, or in test_runtimes, more strictly."""


@pytest.fixture(scope="module", autouse=True)
def _few_samples_in_an_advice():
    """What the contract says of an advice holds of ten samples as of fifty; one that differs weighs more."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (advice, probe):
            patched.setattr(module, "SAMPLES", 10)
        yield


@pytest.fixture(scope="module")
def case():
    """Each method on trial on eight clients in two groups, with its first rounds run once."""
    data, made = images(), {}

    def of(text):
        return made.setdefault(text, Case(text, data=data))

    return of


@pytest.fixture(scope="module")
def federation(simulator):
    return simulator(images(), threads=2)


@EVERY
@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check not in ELSEWHERE], ids=lambda check: check.__name__
)
def test_the_contract_holds(text, check, case):
    check(case(text))


@EVERY
def test_chunks_groups_and_threads_change_nothing_but_rounding(text, case, monkeypatch):
    monkeypatch.setattr(aggregate, "CHUNK_BYTES", 3 * 8 * 1500)
    monkeypatch.setattr(plan, "LOCKSTEP_NUMBERS", 5000)
    same_run(case(text).plain, case(text).train(case(text).simulator(threads=1, plan="lockstep", spill=0)), 1e-6)


def assert_groups_found(text, labels, groups):
    """Two clusters, which are the groups; or as many as a method has that never clusters."""
    name = re.split(r"[(+]", text)[0]
    clusters = 2 if text in LATE or name not in NEVER else min(NEVER[name], len(labels))
    assert len(set(labels)) == clusters
    assert clusters != 2 or adjusted_rand_score(groups, labels) == 1


@EVERY
def test_whatever_clusters_finds_the_groups(text, case):
    own = case(text)
    done = own.train(own.federation, LATE[text]) if text in LATE else own.plain
    assert_groups_found(text, done[-1].state.labels, own.data.groups)


@EVERY
def test_whatever_clusters_finds_the_groups_of_those_who_came_later(text, case):
    done, groups = case(text).coming_and_going, case(text).data.groups
    labels, there = done[-1].state.labels, done[-1].there
    assert there.tolist() == [0, 1, 2, 3, 4, 5, 7]
    assert_groups_found(text, labels[there], groups[there])
    formed = next(step for step in done if len(step.state.stack) == len(done[-1].state.stack))
    assert (labels[6] >= 0) == (6 in formed.there), "who has left keeps its label until the clusters become others"


@pytest.mark.parametrize("text", [*algorithms, *(text for text in VARIANTS if "cam" in text)])
def test_the_cost_with_buffers_is_the_size_of_what_travels(text):
    """Of variants only those can differ in which a part of the buffers travels."""
    counted, travelled = counted_and_weighed(Case(text, data=images((8, 9, 10, 7)), model="cnn"))
    assert counted == travelled


@EVERY
def test_steps_are_counted(text, case):
    algorithm, steps = build_algorithm(text, 2), 1 if text.startswith("joint") else 4
    for done in case(text).plain[1:]:
        members = zip((algorithm, *algorithm.members), (done.before, *done.before.members), strict=True)
        passes = sum(len(each.task(state).fit) for each, state in members)
        passes += text.count("alternate")  # the second half has an exchange of its own
        passes += text.count("stocfl")  # all clients train one more model
        passes += (
            text.startswith("ocfl") and getattr(done.before.memory, "shots", 0) == 1 and "shots=2" in text
        )  # once more
        assert done.cost.steps == 8 * steps * passes


@pytest.mark.parametrize(("text", "simpler"), REDUCES_TO.items())
def test_reduces_to(text, simpler, case):
    for one, other in zip(case(text).plain, case(simpler).plain, strict=True):
        same(one.state.stack, other.state.stack, 1e-6)
        same(one.state.labels, other.state.labels)


def test_alone_local_training_is_fedavg(train, simulator):
    alone = simulator(images().select([0]))
    for one, other in zip(train("local", alone), train("fedavg", alone), strict=True):
        same(one.state.stack, other.state.stack, 1e-6)


def test_local_training_is_as_if_nobody_else_were_there(case, train, simulator):
    for client in (0, 5):
        alone = train("local", simulator(images().select([client])))[-1].state.stack.params[0]
        np.testing.assert_allclose(case("local").plain[-1].state.stack.params[client], alone, atol=1e-6)


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
    ran = (list(islice(rounds(each, dressed(federation, each), seed=1), 1)) for each in (made, again))
    same_run(*ran)


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


def test_a_folder_of_an_algorithm_with_an_add_on_made_in_python_places_a_newcomer(tmp_path):
    data = images()
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
