"""A site's rules: what a policy file may say, and what is refused under it."""

from __future__ import annotations

import sys
from dataclasses import fields

import pytest

from coterie.deploy.policy import DEFAULT_POLICY_TEXT, Policy, load_policy
from coterie.errors import Refused, UsageError
from coterie.protocol.report import Report, Sample
from coterie.protocol.task import BatchLoss, Fit, Loss, Race, Task

SIZES = {"train": 100, "test": 25, "validation": 0}


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        (tmp_path / "policy.toml").write_text(text)
        return load_policy(tmp_path / "policy.toml")

    return write


def check(policy: Policy, task: Task, models: int = 1, served: int = 1, **sizes: int) -> None:
    policy.check_task(task, models, served, {**SIZES, **sizes})


def test_the_text_that_a_new_site_gets_says_every_default(written):
    assert written(DEFAULT_POLICY_TEXT) == Policy()
    assert all(f"\n{field.name} = " in DEFAULT_POLICY_TEXT for field in fields(Policy))
    assert written("") == Policy()


def test_a_policy_that_says_less_allows_less(written):
    policy = written('reports = ["losses"]\nmost_steps = 3\nruns = ["heart-*"]')
    assert policy == Policy(reports=("losses",), most_steps=3, runs=("heart-*",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("most_step = 3", "unknown key in .*'most_step'; did you mean 'most_steps'"),
        ("most_steps = 0", "most_steps is 0; it must be at least 1"),
        ("most_steps = true", "policy.toml: most_steps is True; it must be a whole number, such as 1000"),
        ("most_steps = 1.5", "policy.toml: most_steps is 1.5; it must be a whole number"),
        ('largest_mb = "9"', "largest_mb is '9'"),
        ("least_examples = -1", "least_examples is -1; it must be at least 1"),
        ('reports = "params"', r"policy.toml: reports is 'params'; it must be a list of texts, such as .\"params\""),
        ('reports = ["parms"]', "policy.toml: unknown report 'parms'; did you mean 'params'"),
        ('parts = ["heads"]', "unknown part of a model 'heads'"),
        ('models = ["mpl"]', "unknown model 'mpl'; did you mean 'mlp'"),
        ('models = ["mlp("]', "never closed"),
        ("models = [1]", "a list of texts"),
        ("runs = [", "cannot read the policy .*federate init"),
    ],
)
def test_a_bad_policy_is_refused_with_the_remedy(written, text, said):
    with pytest.raises(UsageError, match=said):
        written(text)


def test_a_policy_that_is_not_there_names_the_command_that_writes_one(tmp_path):
    with pytest.raises(UsageError, match=r"No such file.*federate init"):
        load_policy(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("report", "key"),
    [(Report(), "params"), (Report(None, losses=True), "losses"), (Report(None, evaluate_on="test"), "metrics")],
)
def test_a_report_that_is_not_listed_is_refused_and_the_others_are_not(report, key):
    task = Task(report=report)
    check(Policy(reports=(key,)), task)
    others = tuple(name for name in ("params", "losses", "metrics") if name != key)
    with pytest.raises(Refused, match=f"asks for {key}; this site allows {', '.join(others)} .reports in its policy"):
        check(Policy(reports=others), task)


def test_a_site_may_tell_differences_of_losses_and_no_losses():
    plain, apart = (Task(report=Report(None, losses=True, differences=each)) for each in (False, True))
    check(Policy(reports=("losses",)), apart)
    check(Policy(reports=("differences",)), apart)
    with pytest.raises(Refused, match=r"asks for losses; this site allows differences .reports in its policy"):
        check(Policy(reports=("differences",)), plain)
    with pytest.raises(Refused, match=r"asks for differences; this site allows params .reports in its policy"):
        check(Policy(reports=("params",)), apart)


def test_only_listed_parts_of_a_model_leave():
    check(Policy(parts=("head",)), Task(fit=(Fit(),), report=Report("head")))
    with pytest.raises(Refused, match=r"part 'all'; this site allows head .parts"):
        check(Policy(parts=("head",)), Task(fit=(Fit(),)))


def test_steps_are_those_of_all_passes_on_all_models_at_this_site_s_size():
    task = Task(fit=(Fit(epochs=3, batch=30, part="head"), Fit(steps=8, part="body")))
    check(Policy(most_steps=20), task)  # 3 x ceil(100 / 30) + 8
    with pytest.raises(Refused, match=r"takes 20 minibatch steps; this site allows 19 .most_steps"):
        check(Policy(most_steps=19), task)
    with pytest.raises(Refused, match="takes 40 minibatch"):
        check(Policy(most_steps=39), task, served=2)


def test_a_minibatch_is_no_larger_than_allowed():
    """A thousand steps over everything that a site holds would be few steps and much work."""
    check(Policy(largest_batch=100), Task(fit=(Fit(batch=10**9),)))
    with pytest.raises(Refused, match=r"a minibatch has 100 examples; this site allows 99 .largest_batch"):
        check(Policy(largest_batch=99), Task(fit=(Fit(batch=10**9),)))


def test_the_default_number_of_steps_counts():
    with pytest.raises(Refused, match="takes 10 minibatch"):
        check(Policy(most_steps=9), Task(fit=(Fit(),)))


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (Task(report=Report(None, losses=True, sample=Sample(92, 128))), "the losses of a sample would rest on 8 "),
        (Task(report=Report(None, losses=True, sample=Sample(200, 400))), "the losses of a sample would rest on 0 "),
        (Task(report=Report(None, evaluate_on="validation")), "metrics on the validation split would rest on 0 "),
        (Task(fit=(Fit(steps=1, batch=1),)), "a pass of training would rest on 1 "),
        (Task(fit=(Fit(steps=3, batch=3),)), "a pass of training would rest on 9 "),
        (Task(choose=(Loss(examples=9),)), "the choice of a model would rest on 9 "),
        (Task(choose=(Race(first=4),)), "the choice of a model would rest on 4 "),
        (Task(choose=(BatchLoss(),), fit=(Fit(batch=8),)), "the choice of a model would rest on 8 "),
    ],
)
def test_what_rests_on_few_examples_does_not_leave(task, what):
    with pytest.raises(Refused, match=f"{what}examples; this site allows 10 or more .least_examples"):
        check(Policy(), task)
    check(Policy(least_examples=1), task) if " 0 " not in what else None


def test_a_small_site_reports_nothing():
    check(Policy(), Task(report=Report(None)), train=10)
    with pytest.raises(Refused, match="the reply would rest on 9 examples"):
        check(Policy(), Task(report=Report(None)), train=9)


def test_half_of_the_examples_is_counted_as_half():
    with pytest.raises(Refused, match="rest on 9 examples"):
        check(Policy(), Task(fit=(Fit(half=1),)), train=19)
    check(Policy(), Task(fit=(Fit(half=0),)), train=19)


def test_too_many_models_bytes_and_other_runs_are_refused():
    with pytest.raises(Refused, match=r"holds 6 models; this site allows 5 .most_models"):
        check(Policy(most_models=5), Task(), models=6)
    with pytest.raises(Refused, match=r"has 1000001 bytes; this site allows 1000000 .largest_mb"):
        Policy(largest_mb=1).check_size(1_000_001)
    Policy(largest_mb=1).check_size(1_000_000)
    Policy(runs=("heart-*",)).check_run("heart-2")
    with pytest.raises(Refused, match="the run is 'lung'; this site allows heart-"):
        Policy(runs=("heart-*",)).check_run("lung")


@pytest.mark.parametrize("text", ["mlp", "mlp(512, 128)", "tabular(width=8)", "cnn"])
def test_a_model_of_the_zoo_is_allowed_with_any_arguments(text):
    Policy().check_model(text)


def test_a_model_with_arguments_allows_only_these():
    Policy(models=("mlp(64)",)).check_model("mlp( 64 )")
    for text in ("mlp", "mlp(65)", "cnn"):
        with pytest.raises(Refused, match=r"this site allows mlp.64. .models"):
            Policy(models=("mlp(64)",)).check_model(text)


@pytest.mark.parametrize("text", ["os:system", "os:system(1)", "antigravity:geohash", "coterie.models.zoo:mlp"])
def test_code_of_a_package_is_refused_and_never_imported(text):
    """Without this a server could name any function of any module, and the site would call it."""
    with pytest.raises(Refused, match=r"models in its policy.toml"):
        Policy().check_model(text)
    assert "antigravity" not in sys.modules


def test_code_of_a_package_is_allowed_to_the_letter():
    policy = Policy(models=("mlp", "own.nets:small(3)"))
    policy.check_model("own.nets:small(3)")
    for text in ("own.nets:small", "own.nets:small(4)", "own.nets:other(3)", "own.nets"):
        with pytest.raises(Refused):
            policy.check_model(text)
    with pytest.raises(Refused):
        Policy(models=("own.nets:small",)).check_model("own.nets:small(4)")
