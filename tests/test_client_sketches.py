"""Sketches of clients' models: which rounds are kept, what they are, and that they never stop a run."""

import numpy as np
import pytest

from coterie.experiments import client_sketches
from coterie.experiments.client_sketches import MOST, SIZE, ClientSketches, is_kept, load_sketches, no_sketches
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import SKETCHES
from coterie.experiments.settings import Settings
from coterie.protocol.replies import Sketching
from coterie.server.distances.sketches import projection
from coterie.server.loop import rounds

SETTINGS = Settings("wecfl", clients=6, clusters=2, partition="rotation(0,180)", model="mlp(4)", steps=1, rounds=5)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("sketches") / "run"
    return out, run_settings(SETTINGS, out)


def test_kept_rounds_are_few_however_long_a_run_is():
    assert sum(map(is_kept, range(1000))) == 19  # 10 powers of two and 9 times three
    assert sum(map(is_kept, range(1000))) * MOST * SIZE * 4 < 10e6


def test_the_last_round_is_kept_too_and_a_longer_run_forgets_it(made):
    found = load_sketches(made[0])
    assert found.rounds.tolist() == [0, 1, 2, 3, 4]
    assert found.before(5).rounds.tolist() == [0, 1, 2, 3]
    assert found.before(3).rounds.tolist() == [0, 1, 2]


def test_a_sketch_is_the_projection_of_a_model_minus_the_mean_start(made):
    """By hand, for the first round: all clients begin with one model."""
    out, done = made
    simulator = _simulator(done)
    step = next(rounds(done.trained.algorithm, simulator, SETTINGS.seed))
    width = step.replies.params.shape[1]
    moved = step.replies.params.astype(np.float64) - step.before.stack.params[0]
    by_hand = moved @ projection(width, Sketching(size=SIZE)).toarray()
    found = load_sketches(out).points[0]
    np.testing.assert_allclose(found, by_hand, rtol=1e-4, atol=1e-7)
    assert np.abs(by_hand).max() > 0.01


def _simulator(done):
    from coterie.runtimes.simulator import Simulator

    return Simulator(done.data, done.model)


def test_runs_without_a_folder_have_their_course_too(made):
    done = run_settings(SETTINGS, data=made[1].data)
    np.testing.assert_array_equal(done.course.sketches.points, load_sketches(made[0]).points)
    assert len(done.course.labels) == SETTINGS.rounds


def test_a_sample_of_many_clients_has_sketches(monkeypatch):
    monkeypatch.setattr(client_sketches, "MOST", 10)
    sample = no_sketches(1000).clients
    assert len(set(sample.tolist())) == 10
    assert (np.diff(sample) > 0).all()


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "a folder"])
def test_damaged_sketches_are_no_sketches(made, tmp_path, damage):
    content = bytearray((made[0] / SKETCHES).read_bytes())
    content[-5] ^= 1
    if damage == "a folder":
        (tmp_path / SKETCHES).mkdir()
    elif damage != "gone":
        (tmp_path / SKETCHES).write_bytes(content if damage == "flipped" else content[:-9])
    assert load_sketches(tmp_path) is None


def test_what_is_packed_is_what_is_read(made, tmp_path):
    found = load_sketches(made[0])
    (tmp_path / SKETCHES).write_bytes(found.pack())
    again = load_sketches(tmp_path)
    assert isinstance(again, ClientSketches)
    np.testing.assert_array_equal(again.points, found.points)
