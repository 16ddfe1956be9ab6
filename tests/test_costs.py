"""Costs in the units of the thesis' table 7.6: what FedAvg would have cost."""

from __future__ import annotations

import pytest

from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings
from coterie.experiments.summary import FedAvgBytes, costs_in_models, fedavg_bytes
from coterie.models.zoo import build_model

SMALL = {"clients": 12, "clusters": 3, "partition": "rotation(0,180)", "steps": 1, "rounds": 3, "model": "mlp(64)"}
COSTS = ("models_down", "models_up", "models_stored")
CLOSE = 1e-3  # an index of 8 bytes goes with models of 19,240


def costs(text, **changes):
    summary = run_settings(Settings(text, **{**SMALL, **changes})).summary
    return [summary[name] for name in COSTS]


def record(number, asked, down, up, stored):
    return {"round": number, "asked": asked, "bytes_down": down, "bytes_up": up, "bytes_stored": stored}


def test_a_unit_is_one_model_each_way_with_what_goes_with_it():
    # 5 numbers of 4 bytes; down also the model's row (8), up also label, examples and loss (24).
    assert fedavg_bytes(build_model("linear", (4,), None)) == FedAvgBytes(down=28, up=44)


def test_costs_are_for_each_client_asked_in_each_round_and_storage_is_the_largest():
    # 4 + 2 clients asked of 10 bytes each way: 60; round 0 sent 120 and 60, round 1 60 and 0.
    found = costs_in_models([record(0, 4, 120, 60, 50), record(1, 2, 60, 0, 30)], FedAvgBytes(down=10, up=10))
    assert [found[name] for name in COSTS] == [3, 1, 5]


def test_a_warm_up_that_counts_as_several_rounds_is_beside_as_many_of_fedavg():
    # One exchange of 3 rounds with 2 clients, then one round: 8 client-rounds in the place of 4 exchanges.
    found = costs_in_models([record(2, 2, 20, 20, 10), record(3, 2, 20, 20, 10)], FedAvgBytes(down=10, up=10))
    assert [found[name] for name in COSTS] == [0.5, 0.5, 1]


def test_a_run_begun_before_storage_was_recorded_has_no_such_costs():
    assert costs_in_models([{"round": 0, "bytes_down": 5}, record(1, 2, 60, 0, 30)], FedAvgBytes(down=10, up=10)) == {}


@pytest.mark.parametrize("changes", [{}, {"participation": 0.5}, {"leave": "0.5@1"}, {"model": "tiny-vgg"}])
def test_fedavg_costs_one_of_each_whoever_takes_part(changes):
    assert costs("fedavg", **changes) == [1, 1, 1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("wecfl", [1, 1, 1]),
        ("ifca(start=random)", [3, 1, 3]),
        # All clients train once (1 down, 1 up) and judge the first two starts one by one (2 down): 3 / 3 rounds.
        ("ifca", [3 + 1, 1 + 1 / 3, 3]),
        ("fedavg-ensemble(members=3)", [3, 3, 1]),
    ],
)
def test_costs_of_some_methods_in_models(text, wanted):
    assert costs(text) == pytest.approx(wanted, rel=CLOSE)


def test_a_network_of_two_halves_counts_as_two_of_the_user_s():
    assert costs("wecfl+cam(warmup=0)") == pytest.approx([2, 2, 2], rel=CLOSE)


def test_storage_is_that_of_one_exchange_and_not_of_all_in_a_round():
    down, _, stored = costs("ifca", rounds=1)
    assert (down, stored) == pytest.approx((6, 3), rel=CLOSE)
