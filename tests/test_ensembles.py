"""Ensembles: members that run as they would alone, and outputs that are mixed where clients are tested."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score

import coterie as ct
from coterie.algorithms import build_algorithm, ensemble, soft_vote
from coterie.errors import UsageError
from coterie.experiments.checkpoint import save_state
from coterie.experiments.records import uniform_test
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import load_state
from coterie.experiments.settings import Settings
from coterie.models.combined import mix_outputs
from coterie.protocol.message import cost, down, up
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent
from coterie.protocol.task import Fit, Race, Task
from coterie.seeding import Key
from coterie.server.contract import Serving
from coterie.server.loop import Conditions, member_seed, rounds
from coterie.server.serving import evaluate, rows_that_serve
from coterie.target import Target
from coterie.testing import Loopback
from coterie.textforms import parse

QUICK = Fit(steps=3, batch=8, lr=0.05)


def run(algorithm, federation, count=3, **options):
    made = build_algorithm(algorithm, 2, QUICK) if isinstance(algorithm, str) else algorithm
    return list(
        islice(
            rounds(made, federation, options.pop("seed", 1), options.pop("state", None), Conditions(**options)), count
        )
    )


def outputs_of(sim, state, client, split="test"):
    """Each member's outputs on a client's examples, and the truth; the ensemble's first member comes first."""
    x, y = (torch.from_numpy(part) for part in getattr(sim.data, split).of(client))
    found = []
    for member in (state, *state.members):
        row = member.labels[client]
        with torch.no_grad():
            found.append(sim.model.with_row(member.stack.params[row], member.stack.buffers[row])(x))
    return found, y


class TestMembers:
    def test_they_are_the_very_runs_one_would_get_alone(self, images, simulator):
        sim = simulator(images())
        together = run("fedavg-ensemble(members=3)", sim)
        seeds = [member_seed(1, number) for number in range(3)]
        assert seeds[0] == 1
        assert len(set(seeds)) == 3
        for place, seed in enumerate(seeds):
            for step, alone in zip(together, run("fedavg", sim, seed=seed), strict=True):
                state = (step.state, *step.state.members)[place]
                np.testing.assert_array_equal(state.stack.params, alone.state.stack.params)

    def test_voters_have_the_seed_of_the_run(self, images, simulator):
        sim = simulator(images())
        together, other = run("vote(fedprox,wecfl(layer=all))", sim), run("wecfl(layer=all)", sim)
        for step, lead, further in zip(together, other, run("fedprox", sim), strict=True):
            np.testing.assert_array_equal(step.state.stack.params, lead.state.stack.params)
            np.testing.assert_array_equal(step.state.labels, lead.state.labels)
            np.testing.assert_array_equal(step.state.members[0].stack.params, further.state.stack.params)
            assert step.cost == lead.cost + further.cost

    def test_a_sample_of_clients_is_drawn_for_each(self, images, simulator):
        done = run("fedavg-ensemble(members=2)", simulator(images()), 1, participation=0.5)[0]
        alone = [run("fedavg", simulator(images()), 1, participation=0.5, seed=member_seed(1, n))[0] for n in (0, 1)]
        assert [len(step.replies) for step in alone] == [4, 4]
        np.testing.assert_array_equal(done.state.members[0].stack.params, alone[1].state.stack.params)

    @pytest.mark.parametrize(("text", "fits"), [("fedprox-ensemble(members=2)+cks", 2), ("vote(fedavg,ifca)+cks", 2)])
    def test_an_add_on_reaches_every_member(self, text, fits, images, simulator):
        algorithm, done = build_algorithm(text, 2, QUICK), run(text, simulator(images()), 1)[0]
        members = zip((algorithm, *algorithm.members), (done.state, *done.state.members), strict=True)
        assert [any(type(t).__name__ == "Near" for t in m.task(s).fit[0].terms) for m, s in members] == [True] * fits


class TestMixing:
    @pytest.mark.parametrize("model", ["mlp(6)", "cnn"])
    @pytest.mark.parametrize(
        ("text", "mixed"),
        [
            ("fedavg-ensemble(members=3)", lambda outs: torch.stack([F.softmax(o, -1) for o in outs]).mean(0).log()),
            ("vote(fedavg,ifca)", lambda outs: outs[0] + outs[1]),
        ],
    )
    def test_metrics_are_those_of_a_direct_computation(self, images, simulator, model, text, mixed):
        sim = simulator(images(), model)
        state = run(text, sim, 2)[-1].state
        found = evaluate(build_algorithm(text, 2), sim, state, seed=1)
        assert found.rows.shape == (8, 1 + len(state.members))
        for client in range(8):
            outputs, y = outputs_of(sim, state, client)
            wanted = mixed(outputs)
            assert found.metrics[client, 0] == pytest.approx(float((wanted.argmax(-1) == y).double().mean()))
            assert found.metrics[client, 2] == pytest.approx(float(F.cross_entropy(wanted, y)), abs=1e-5)

    def test_weights_sum_to_one(self):
        rng = torch.Generator().manual_seed(1)
        outputs = [torch.randn(5, 4, generator=rng) * 9 for _ in range(3)]
        mixed = mix_outputs(outputs, "softmax", Target(4))
        assert torch.allclose(mixed.exp().sum(-1), torch.ones(5), atol=1e-6)
        certain = [torch.tensor([[50.0, 0.0]]), torch.tensor([[0.0, 50.0]]), torch.tensor([[0.0, 50.0]])]
        assert mix_outputs(certain, "softmax", Target(2)).exp()[0].tolist() == pytest.approx([1 / 3, 2 / 3])

    def test_one_that_is_sure_outweighs_in_a_sum_of_logits_but_not_in_a_mean_of_probabilities(self):
        """Softmaxes (0.999, 0.001) once and (0.27, 0.73) three times; the logits sum to 7 - 3 = 4."""
        outputs = [torch.tensor([[7.0, 0.0]])] + [torch.tensor([[0.0, 1.0]])] * 3
        assert mix_outputs(outputs, "logits", Target(2)).tolist() == [[7.0, 3.0]]
        assert mix_outputs(outputs, "logits", Target(2)).argmax().item() == 0
        assert mix_outputs(outputs, "softmax", Target(2)).argmax().item() == 1

    def test_a_majority_is_of_members_however_sure_they_are_and_its_losses_are_finite(self):
        """Two of three name class 1, one is sure of class 0: shares of votes 1 + 1/3, 2 + 1/3, 0 + 1/3 of four."""
        outputs = [torch.tensor([row]) for row in ([90.0, 0.0, 0.0], [0.0, 0.1, 0.0], [0.0, 0.2, 0.1])]
        mixed = mix_outputs(outputs, "majority", Target(3))
        assert mixed.exp()[0].tolist() == pytest.approx([4 / 12, 7 / 12, 1 / 12])
        assert mix_outputs(outputs, "softmax", Target(3)).argmax().item() == 0
        assert mixed.argmax().item() == 1

    def test_how_members_are_mixed_can_be_chosen(self):
        for text in ("fedavg-ensemble", "fedprox-ensemble", "vote"):
            for by in ("softmax", "logits", "majority"):
                assert build_algorithm(f"{text}(by={by})").serve.mix == by
            with pytest.raises(UsageError, match="by is 'mean'; it must be softmax or logits or majority"):
                build_algorithm(f"{text}(by=mean)")
        assert [build_algorithm(text).serve.mix for text in ("fedavg-ensemble", "vote")] == ["softmax", "logits"]

    @pytest.mark.parametrize("rule", ["softmax", "logits", "majority"])
    def test_predictions_of_a_number_are_averaged(self, rule):
        assert mix_outputs([torch.tensor([[2.0]]), torch.tensor([[5.0]])], rule, Target()).tolist() == [[3.5]]

    def test_an_ensemble_of_one_is_its_member(self, images, simulator):
        sim = simulator(images())
        one, alone = (run(text, sim)[-1].state for text in ("fedavg-ensemble(members=1)", "fedavg"))
        np.testing.assert_array_equal(one.stack.params, alone.stack.params)
        found = [evaluate(build_algorithm(t, 2), sim, one, 1) for t in ("fedavg-ensemble(members=1)", "fedavg")]
        np.testing.assert_array_equal(found[0].metrics, found[1].metrics)

    def test_two_equal_members_are_as_one(self, images, simulator):
        sim, base = simulator(images()), build_algorithm("ifca", 2, QUICK)
        twins = replace(base, members=(base,), serve=Serving(mix="softmax"))
        state = run(twins, sim)[-1].state
        np.testing.assert_array_equal(state.stack.params, state.members[0].stack.params)
        both, alone = (evaluate(a, sim, s, 1) for a, s in ((twins, state), (base, replace(state, members=()))))
        np.testing.assert_allclose(both.metrics, alone.metrics, rtol=0, atol=1e-6)
        summed = evaluate(replace(twins, serve=Serving(mix="logits")), sim, state, 1)
        np.testing.assert_array_equal(summed.metrics[:, :2], alone.metrics[:, :2])
        assert (summed.metrics[:, 2] != alone.metrics[:, 2]).all()

    def test_someone_without_a_cluster_is_served_the_mean_by_each_member(self, images, simulator, flaky):
        sim = simulator(images())
        state = run("vote(fedavg,wecfl)", flaky(sim, {0: {2}}), 1)[0].state
        stack, rows = rows_that_serve(state)
        assert rows[2].tolist() == [2, 3]
        np.testing.assert_allclose(stack.params[2], state.shares @ state.stack.params, atol=1e-6)
        np.testing.assert_array_equal(stack.params[3], state.members[0].stack.params[0])

    def test_how_clients_choose_is_said_to_both_voters(self, images, simulator):
        made = build_algorithm("vote(ifca(start=random),ifca)", 2, QUICK, choose="race")
        state = run(made, simulator(images()), 1)[0].before
        assert [made.task(state).choose, made.members[0].task(state.members[0]).choose] == [(Race(),), (Race(),)]

    def test_each_member_is_finetuned_before_the_vote(self, images, simulator):
        """The control: tuned members differ from those of the server, and their sum is what is tested."""
        sim = simulator(images())
        text = "vote(fedavg,ifca)+finetune"
        algorithm, state = build_algorithm(text, 2, QUICK), run(text, sim, 1)[-1].state
        found = evaluate(algorithm, sim, state, seed=1).metrics
        stack, rows = rows_that_serve(state)
        tuned = [
            sim.ask(Task(fit=(QUICK,)), Sent(stack), rows[:, j], np.arange(8), Key(1, state.round)) for j in (0, 1)
        ]
        for client in range(8):
            x, y = (torch.from_numpy(part) for part in sim.data.test.of(client))
            with torch.no_grad():
                total = sum(sim.model.with_row(t.params[client], t.buffers[client])(x) for t in tuned)
            assert found[client, 2] == pytest.approx(float(F.cross_entropy(total, y)), abs=1e-5)

    def test_a_message_holds_the_models_of_all_members_and_costs_as_much(self, images, simulator):
        sim = simulator(images((8, 9, 10)), "cnn")
        stack, rows = rows_that_serve(run("vote(fedavg,ifca)", sim, 1)[0].state)
        task = Task(report=Report(params=None, evaluate_on="test", mix="logits"))
        replies = sim.ask(task, Sent(stack), rows, np.arange(3), Key(1, 0))
        sent = [down(task, Sent(stack), row, sim.model.layout) for row in rows]
        assert [message["params"].shape[0] for message in sent] == [2] * 3
        spent = cost(task, Sent(stack), replies, 3)
        assert spent.bytes_down == sum(a.nbytes for message in sent for a in message.values())
        assert spent.bytes_up == sum(a.nbytes for a in up(replies).values())
        far = Loopback(sim.data, sim.model)
        np.testing.assert_allclose(
            far.ask(task, Sent(stack), rows, np.arange(3), Key(1, 0)).metrics, replies.metrics, atol=1e-5
        )
        assert far.payload.bytes_down == spent.bytes_down


def small(algorithm, count=4, **more):
    options = {"clients": 8, "clusters": 2, "partition": "rotation(0,180)", "steps": 2, "model": "mlp(8)"}
    return Settings(algorithm, rounds=count, **options, **more)


class TestRuns:
    @pytest.mark.parametrize(
        "text", ["fedprox-ensemble(members=3)", "vote(wecfl,ifca)", "vote(fedavg,ifca)+cam(warmup=0)"]
    )
    def test_a_resumed_run_equals_an_unbroken_one(self, tmp_path, text):
        whole = run_settings(small(text))
        run_settings(small(text, 2), tmp_path / "run")
        resumed = run_settings(small(text), tmp_path / "run", resume=True)
        for one, other in zip(whole.history, resumed.history, strict=True):
            assert {**one, "seconds": 0} == {**other, "seconds": 0}
        for one, other in zip(
            (whole.state, *whole.state.members), (resumed.state, *resumed.state.members), strict=True
        ):
            np.testing.assert_array_equal(one.stack.params, other.stack.params)

    def test_a_state_is_saved_with_its_members(self, tmp_path):
        state = run_settings(small("vote(wecfl,ifca)", 2)).state
        save_state(tmp_path / "state", state)
        loaded = load_state(tmp_path / "state")
        assert (loaded.memory, loaded.round, len(loaded.members)) == (None, 2, 1)
        assert loaded.members[0].memory.clusterings == state.members[0].memory.clusterings == 2
        np.testing.assert_array_equal(loaded.members[0].memory.centres, state.members[0].memory.centres)
        np.testing.assert_array_equal(loaded.members[0].labels, state.members[0].labels)

    @pytest.mark.parametrize("text", ["fedavg-ensemble(members=2)", "vote(fedavg,wecfl)"])
    def test_the_model_that_serves_a_client_is_the_mixture_that_was_tested(self, text):
        run = ct.Run(run_settings(small(text, 3)))
        hits, general = [], []
        common = uniform_test(run.data)
        for client in range(8):
            x, y = (torch.from_numpy(part) for part in run.data.test.of(client))
            with torch.no_grad():
                hits.extend((run.model_for(client)(x).argmax(-1) == y).tolist())
                guess = run.model_for(client)(torch.from_numpy(common.x)).argmax(-1).numpy()
            general.append(f1_score(common.y, guess, average="macro"))
        assert run.summary["accuracy"] == pytest.approx(np.mean(hits))
        assert run.history[-1]["gf1"] == pytest.approx(np.mean(general))

    def test_regression_works(self, targets):
        run = ct.run(ct.fedavg_ensemble(members=2, fit=QUICK), targets(), model="linear", rounds=2)
        x = torch.from_numpy(run.data.test.of(1)[0])
        with torch.no_grad():
            members = [
                run.model.with_row(s.stack.params[0], s.stack.buffers[0])(x) for s in (run.state, *run.state.members)
            ]
            assert torch.allclose(run.model_for(1)(x), sum(members) / 2)
        assert np.isfinite(run.summary["rmse"])


class TestTexts:
    def test_a_call_may_stand_inside_a_call(self):
        (call,) = parse("vote(fedavg, wecfl(shots=10,layer=all)+cks(strength=0.1), clusters=3)")
        assert call.args == ("fedavg", "wecfl(shots=10,layer=all)+cks(strength=0.1)")
        assert call.kwargs == (("clusters", 3),)
        assert parse(str(call)) == (call,)
        assert parse("vote(second=ifca(start=random))+finetune")[0].kwargs == (("second", "ifca(start=random)"),)

    @pytest.mark.parametrize("text", ["vote(fedavg,ifca(start=random)", "vote((", "mlp(1"])
    def test_what_is_never_closed_is_refused(self, text):
        with pytest.raises(UsageError, match="a '\\(' is never closed"):
            parse(text)

    def test_a_name_in_a_table_can_be_run_again(self):
        made = ct.vote("fedavg", "wecfl(shots=10)+cks", clusters=3)
        assert build_algorithm(made.name).name == "vote(second=wecfl(shots=10)+cks,clusters=3)"
        assert ct.fedprox_ensemble(members=3).name == "fedprox-ensemble(members=3)"

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("fedavg-ensemble(members=0)", "members is 0; it must be at least 1"),
            ("vote(fedavg-ensemble,ifca)", "fedavg-ensemble cannot vote: it is an ensemble"),
            ("vote(fedavg,ifca(fresh=true))", "cannot vote: it is an ensemble, or does something before it is tested"),
            ("vote(fedavg,wecfl+cam)", r"voters must share one network; write 'vote\(fedavg,ifca\)\+cam'"),
            ("vote(fedavg,wecf)", "did you mean 'wecfl'"),
        ],
    )
    def test_what_cannot_be_is_refused_before_a_run(self, text, reason):
        with pytest.raises(UsageError, match=reason):
            build_algorithm(text)

    def test_members_that_lose_step_are_refused(self, images):
        with pytest.raises(UsageError, match="members of an ensemble are at rounds 1 and 2; leave out the warm-up"):
            ct.run(build_algorithm("vote(ifca,wecfl)+cam(warmup=2)", 2, QUICK), images(), model="mlp(4)", rounds=3)

    def test_a_state_of_fewer_members_is_not_gone_on_from(self, images, simulator):
        sim = simulator(images())
        with pytest.raises(ValueError, match="shorter"):
            run("fedavg-ensemble(members=3)", sim, state=run("fedavg-ensemble(members=2)", sim, 1)[0].state)

    def test_an_ensemble_can_be_made_of_anything(self, images, simulator):
        made = ensemble(build_algorithm("ifca", 2, QUICK), 2)
        assert evaluate(made, simulator(images()), run(made, simulator(images()), 2)[-1].state, 1).metrics.shape == (
            8,
            4,
        )
        three = soft_vote(*(build_algorithm(name, 2, QUICK) for name in ("fedavg", "fesem", "ifca")))
        assert len(run(three, simulator(images()), 1)[0].state.members) == 2


def test_a_mixture_is_a_report_of_metrics_alone():
    with pytest.raises(UsageError, match=r"report\.mix is 'votes'; it must be softmax or logits or majority"):
        Report(params=None, mix="votes")
    with pytest.raises(UsageError, match=r"report\.params is 'all'; it must be None for a mixture"):
        Report(mix="logits")
