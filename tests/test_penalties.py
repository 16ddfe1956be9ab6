"""The add-ons of chapters 4 to 6: whom their penalties are about, from when on."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from coterie.algorithms import build_algorithm
from coterie.data.federated import Federated
from coterie.errors import UsageError
from coterie.models.zoo import build_model
from coterie.protocol.stack import UNPLACED
from coterie.protocol.task import Fit
from coterie.runtimes.attendance import Attendance, Attended
from coterie.runtimes.simulator import Simulator
from coterie.server.loop import rounds
from coterie.testing import Loopback

QUICK = Fit(steps=3, batch=8, lr=0.05)
ADD_ONS = ("cks(strength={})", "cks(strength={},others=true)", "con-para(strength={})", "con-rep(strength={})")


def federation(text, data: Federated, kind=Simulator):
    algorithm = build_algorithm(text, 2, QUICK)
    return algorithm, kind(data, algorithm.network(build_model("mlp(8)", data.shape, data.classes)))


def replies(text, data, count, join=None, kind=Simulator):
    """What the clients sent in each of the first rounds."""
    algorithm, sim = federation(text, data, kind)
    there = Attended(sim, Attendance(sim.names, join or {}))
    return list(islice(rounds(algorithm, there, 1), count))


@pytest.mark.parametrize("add_on", ADD_ONS)
@pytest.mark.parametrize(
    ("base", "after", "first"),
    [
        ("ifca(start=random)", "+cam(warmup=2)", 3),  # nobody has chosen before round 2
        ("ifca", "", 1),
        ("wecfl", "", 1),
        ("lcfl(warmup=2)", "", 3),  # one model for all until the end of round 2
        ("gradcos(warmup=0)", "", 1),
    ],
)
def test_penalties_begin_in_the_round_after_clusters_were_found(images, base, add_on, after, first):
    """Until then a strength of nothing and a large one give the same replies, bit for bit."""
    weak, strong = (replies(f"{base}+{add_on.format(s)}{after}", images(), first + 1) for s in (0, 5))
    for one, other in zip(weak[:first], strong[:first], strict=True):
        assert np.array_equal(one.replies.params, other.replies.params), one.before.round
    assert strong[first].before.placed.all()
    assert not np.allclose(weak[first].replies.params, strong[first].replies.params)


@pytest.mark.parametrize("add_on", ADD_ONS)
@pytest.mark.parametrize("base", ["wecfl", "ifca"])
def test_they_leave_a_client_alone_that_joined_in_this_round(images, base, add_on):
    """The others are held from round 1 on; it is held from the round after its first."""
    data, late = images(), {"client-3": 2}
    weak, strong = (replies(f"{base}+{add_on.format(s)}", data, 4, late) for s in (0, 5))
    assert strong[2].before.labels[3] == UNPLACED
    sent = [np.flatnonzero(step.replies.clients == 3)[0] for step in strong[2:]]
    bare, sim = federation(base, data)
    for step, row, held in zip(strong[2:], sent, (False, True), strict=True):
        alone = next(rounds(bare, Attended(sim, Attendance(sim.names, late)), 1, step.before)).replies.params[row]
        assert np.allclose(step.replies.params[row], alone, atol=1e-6) != held, step.before.round
    assert not np.allclose(weak[2].replies.params[0], strong[2].replies.params[0])


@pytest.mark.parametrize("text", ["wecfl+con-para", "wecfl+con-rep", "wecfl+cks(others=true)", "ifca+con-para"])
def test_a_client_that_joins_answers_over_bytes_too(images, text):
    """It works on the mean of all models, which is none of theirs: its reply was refused as a row that is not there."""
    late = {"client-3": 2}
    near, far = (replies(text, images(), 4, late, kind) for kind in (Simulator, Loopback))
    for one, other in zip(near, far, strict=True):
        assert one.replies.clients.tolist() == other.replies.clients.tolist()
        np.testing.assert_allclose(one.replies.params, other.replies.params, rtol=0, atol=1e-6)
        assert one.state.labels.tolist() == other.state.labels.tolist()
    assert 3 in far[2].replies.clients
    assert far[-1].state.labels[3] >= 0


def test_with_one_cluster_sharing_is_a_proximal_term(images):
    """From the round after it formed: the mean of all cluster models is the one that a client received."""
    one, other = (replies(f"wecfl(clusters=1)+cks(strength={s})", images(), 2) for s in (0, 0.7))
    prox = build_algorithm("fedprox(strength=0.7)", None, QUICK)
    sim = federation("fedavg", images())[1]
    wanted = next(rounds(prox, sim, 1, other[1].before)).replies.params
    assert np.array_equal(one[0].replies.params, other[0].replies.params)
    np.testing.assert_allclose(other[1].replies.params, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("add_on", "layers"),
    [
        ("con-para", ["all"]),
        ("con-para(layer=projection)", ["projection"]),
        ("con-para(layer=last)", ["head"]),
        ("con-cks", ["projection", "features"]),
        ("con-cks(layer=last)", ["head", "body"]),
        ("con-cks(layer=all)", ["all", "all"]),
    ],
)
def test_the_layers_that_are_contrasted_and_shared_can_be_chosen(images, add_on, layers):
    algorithm = build_algorithm(f"wecfl+{add_on}", 2, QUICK)
    state = replies("wecfl", images(), 1)[0].state
    assert [term.part for term in algorithm.task(state).fit[0].terms] == layers


def test_the_head_of_con_cks_is_all_layers_after_the_convolutions(images):
    """A strong contrast and no sharing move the three linear layers of lenet, and leave the convolutions alone."""
    data = images((8, 9, 10, 7), shape=(1, 16, 16))
    model, fit = build_model("lenet", data.shape, data.classes), Fit(steps=1, batch=100, lr=0.05, momentum=0.0)
    texts = ("wecfl+con-cks(strength={},sharing=0)", "wecfl+con-cks(strength={},sharing=0,layer=last)")
    for text, part in zip(texts, ("projection", "head"), strict=True):
        weak, strong = (
            list(islice(rounds(build_algorithm(text.format(s), 2, fit), Simulator(data, model), 1), 2))[
                1
            ].replies.params
            for s in (0, 50)
        )
        moved = np.flatnonzero((weak != strong).any(axis=0))
        assert np.isin(moved, model.layout.numbers(part)).all()
        first = model.layout.numbers(part)[:100]
        assert np.isin(first, moved).mean() > 0.5, "its first layer moves too"


def test_words_that_mean_nothing_are_refused():
    with pytest.raises(UsageError, match="layer is 'body'; it must be projection or last or all"):
        build_algorithm("wecfl+con-cks(layer=body)")
    with pytest.raises(UsageError, match="of is 'parameters'; it must be inputs or outputs"):
        build_algorithm("wecfl+con-rep(of=parameters)")


@pytest.mark.parametrize("text", ["joint+cks+cam(warmup=2)", "joint+con-cks(layer=last)+cam(warmup=1,alternate=true)"])
def test_a_mean_that_no_term_reads_yet_is_not_sent(images, text):
    """Rows were sent that the task did not count, and the models of the round before were looked for elsewhere."""
    for step in replies(text, images(), 4)[-2:]:
        assert np.isfinite(step.state.stack.params).all()


def test_penalties_on_a_part_that_a_model_does_not_have_are_refused(images):
    """They would do nothing, whatever their strength."""
    data = images()
    for text, model, part in (("con-cks", "logistic", "features"), ("con-cks(layer=last)", "logistic", "body")):
        algorithm = build_algorithm(f"wecfl+{text}", 2, QUICK)
        with pytest.raises(UsageError, match=f"the part '{part}' of model '{model}' is empty"):
            list(islice(rounds(algorithm, Simulator(data, build_model(model, data.shape, 4)), 1), 2))


@pytest.mark.parametrize(
    "text", ["cks(strength=-1)", "cks(strength=-1,others=true)", "con-rep(each=foo)", "con-para(temperature=0)"]
)
def test_values_that_make_no_sense_are_refused_before_a_run(text):
    with pytest.raises(UsageError, match="it must be"):
        build_algorithm(f"lcfl(warmup=9)+{text}")
