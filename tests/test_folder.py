"""Damaged run folders: each is refused in one line or repaired, and never gives other numbers."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.errors import RunFolderError
from coterie.experiments.placement import load_trained
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import (
    RunFolder,
    load_labels,
    load_rounds,
    load_state,
    load_summary,
    recorded_hashes,
)
from coterie.experiments.settings import Settings
from coterie.experiments.summary import load_clusters

ROUNDS = 4
SETTINGS = Settings(
    "wecfl", clients=6, clusters=2, partition="rotation(0,180)", model="mlp(4)", steps=1, rounds=ROUNDS, threads=1
)
MEASURED = {"seconds", "client_steps_per_second", "peak_memory_mb"}


def without_measurements(records):
    """Return records without times and memory, which differ from run to run."""
    return [{name: value for name, value in record.items() if name not in MEASURED} for record in records]


@pytest.fixture(scope="module")
def true(tmp_path_factory):
    """A finished run: its folder, its data, which all runs here share, its summary and its records."""
    out = tmp_path_factory.mktemp("true") / "run"
    run = run_settings(SETTINGS, out)
    return out, run.data, without_measurements([run.summary]), without_measurements(run.history)


def stopped(data, out):
    """The same run, stopped by Ctrl-C after its third round."""

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_settings(SETTINGS, out, progress=stop, data=data)


@pytest.fixture(scope="module")
def begun(true, tmp_path_factory):
    out = tmp_path_factory.mktemp("begun") / "run"
    stopped(true[1], out)
    return out


@pytest.fixture(params=["finished", "unfinished"])
def folder(request, true, begun, tmp_path):
    """A copy of a finished and of an unfinished run's folder, to be damaged."""
    return shutil.copytree(true[0] if request.param == "finished" else begun, tmp_path / "run")


def resumed_or_refused(true, folder):
    """Resume a folder: it gives the true numbers, or it is refused in one line and not changed."""
    before = content(folder)
    try:
        run = run_settings(SETTINGS, folder, resume=True, data=true[1])
    except RunFolderError as error:
        problem = str(error)
    else:
        problem = ""
    if problem:
        assert "\n" not in problem
        assert content(folder) == before
        return problem
    assert without_measurements([run.summary]) == true[2]
    assert without_measurements(run.history) == without_measurements(load_rounds(folder)) == true[3]
    assert without_measurements([load_summary(folder)]) == true[2]
    np.testing.assert_array_equal(load_labels(folder), load_labels(true[0]))
    return "made again"


def content(folder):
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def change_digit(path, line):
    """Another digit in the accuracy of one record."""
    lines = path.read_text().splitlines(keepends=True)
    record = json.loads(lines[line])
    record["accuracy"] = 1 - record["accuracy"]
    path.write_text("".join([*lines[:line], json.dumps(record) + "\n", *lines[line + 1 :]]))


@pytest.mark.parametrize("line", [0, 1])
def test_a_changed_digit_in_an_early_record_is_refused(true, folder, line):
    change_digit(folder / "rounds.jsonl", line)
    assert "rounds.jsonl is damaged (its hash is not that in hashes.txt); put it" in resumed_or_refused(true, folder)


def test_a_changed_digit_in_the_last_record_costs_only_that_round(true, folder):
    change_digit(folder / "rounds.jsonl", -1)
    assert resumed_or_refused(true, folder) == "made again"


def test_a_changed_label_is_refused_or_made_again(true, folder):
    labels = np.load(folder / "labels.npy")
    for row, wanted in ((-1, "made again"), (0, "labels.npy is damaged (its hash is not that")):
        other = labels.copy()
        other[row, 3] += 1
        (folder / "labels.npy").write_bytes(npy(other))
        if row == -1:
            copy = shutil.copytree(folder, folder.with_name("copy"))
            assert resumed_or_refused(true, copy) == wanted
    assert wanted in resumed_or_refused(true, folder)


LABELS = {
    "empty": b"",
    "truncated": npy(np.zeros((4, 6), int))[:-9],
    "of another width": npy(np.zeros((4, 5), int)),
    "0-d": npy(np.array(3)),
    "pickled": npy(np.array([{}]), allow_pickle=True),
    "of floats": npy(np.zeros((4, 6))),
    "too few": npy(np.zeros((1, 6), int)),
    "no array": b"PK\x03\x04 or anything else",
    "of a huge shape": npy(np.zeros((4, 6), int)).replace(b"(4, 6), }       ", b"(4, 66666666666)"),
}


@pytest.mark.parametrize("what", LABELS)
def test_labels_that_are_none_are_refused(true, folder, what):
    (folder / "labels.npy").write_bytes(LABELS[what])
    assert "labels.npy is damaged (" in resumed_or_refused(true, folder)


LINES = {
    "not UTF-8": b'{"round": 0, "accuracy": "\xff"}\n',
    "a list": b"[1, 2]\n",
    "a number": b"7\n",
    "no numbers": b'{"round": 0, "accuracy": NaN}\n',
    "nothing": b"",
    "deep": b"[" * 100_000 + b"\n",
    "of another round": b'{"round": 5}\n',
}


@pytest.mark.parametrize("what", LINES)
def test_records_that_are_none_are_refused(true, folder, what):
    (folder / "rounds.jsonl").write_bytes(LINES[what])
    assert "rounds.jsonl is damaged (its records end after 0 of " in resumed_or_refused(true, folder)


NAMES = ["config.toml", "rounds.jsonl", "labels.npy", "state.safetensors", "clients.csv", "summary.json", "hashes.txt"]


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_in_the_place_of_a_file_is_refused(true, folder, name):
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    assert f"{name} is damaged (" in resumed_or_refused(true, folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing_is_made_again_or_refused(true, folder, name):
    (folder / name).unlink(missing_ok=True)
    found = resumed_or_refused(true, folder)
    assert (found == "made again") == (name in {"state.safetensors", "clients.csv", "summary.json"})


@pytest.mark.parametrize("text", [b"\xff\xfe", b"algorithm = ", b"examples = 3", b"", b"[made_by]\nformat = 2\n"])
def test_settings_that_are_none_are_refused(true, folder, text):
    (folder / "config.toml").write_bytes(text)
    assert "config.toml is damaged (" in resumed_or_refused(true, folder)


@pytest.mark.parametrize("name", ["config.toml", "rounds.jsonl", "labels.npy", "clients.csv", "summary.json"])
def test_a_finished_run_is_read_only_as_it_was_written(true, tmp_path, name):
    folder = shutil.copytree(true[0], tmp_path / "run")
    whole = (folder / name).read_bytes()
    for damage in (whole[:-2], b"", whole + b" ", whole.replace(b"6", b"7", 1)):
        (folder / name).write_bytes(damage)
        for read in (load_summary, load_trained):
            with pytest.raises(RunFolderError, match=rf"{name} is not what the run wrote .* delete .* and resume"):
                read(folder)
    (folder / name).write_bytes(whole)
    assert without_measurements([load_summary(folder)]) == true[2]
    assert load_trained(folder).state.round == ROUNDS


def test_compare_names_what_is_damaged_and_goes_on_once_the_summary_is_gone(true, tmp_path):
    words = ["compare", "wecfl", "--clients", "6", "--clusters", "2", "--partition", "rotation(0,180)", "--no-local"]
    words += ["--model", "mlp(4)", "--steps", "1", "--rounds", str(ROUNDS), "--threads", "1", "--seeds", "1", "--json"]
    words += ["--quiet", "--out", str(tmp_path / "c")]
    folder = tmp_path / "c" / "wecfl" / "seed-1"
    first = CliRunner().invoke(app, words)
    change_digit(folder / "rounds.jsonl", -1)
    refused = CliRunner().invoke(app, words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "rounds.jsonl is not what the run wrote" in refused.stderr
    (folder / "summary.json").unlink()
    again = CliRunner().invoke(app, words)
    one, other = (without_measurements([json.loads(each.stdout)["wecfl"][0]]) for each in (first, again))
    assert one == other


@pytest.mark.parametrize("text", [b"\xff", b"name\n1\n", b"client,cluster\na,x\n", b'client,cluster\n"a,0', None])
def test_rows_of_clients_that_are_none_are_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "clients.csv").write_bytes(text)
    with pytest.raises(RunFolderError, match=r"clients\.csv is damaged \("):
        load_clusters(tmp_path)


def test_the_states_of_two_runs_are_equal_to_the_byte(true, tmp_path):
    for name in "abc":
        run_settings(SETTINGS, tmp_path / name, data=true[1])
    for file in ("state.safetensors", "state.before.safetensors"):
        assert len({(tmp_path / name / file).read_bytes() for name in "abc"}) == 1


def test_a_sound_checkpoint_of_another_run_is_not_resumed(true, folder, tmp_path):
    """Its own hash is right and its round fits; the run would continue with the models of another."""
    shutil.rmtree(tmp_path / "other", ignore_errors=True)
    rounds = len(load_rounds(folder))
    run_settings(replace(SETTINGS, seed=2, rounds=rounds), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "state.safetensors", folder / "state.safetensors")
    with pytest.raises(RunFolderError, match=r"state\.safetensors is damaged \(its hash is not that in hashes\.txt\)"):
        load_state(folder / "state.safetensors", recorded_hashes(folder))
    if (folder / "summary.json").exists():
        with pytest.raises(RunFolderError, match="is damaged"):
            load_trained(folder)
    assert resumed_or_refused(true, folder) == "made again", "the state before is sound"
    shutil.copy(tmp_path / "other" / "state.safetensors", folder / "state.safetensors")
    (folder / "state.before.safetensors").unlink(missing_ok=True)
    assert "state.safetensors is damaged (its hash is not that" in resumed_or_refused(true, folder)


def as_before(folder):
    """The folder as it was written before there were hashes."""
    (folder / "hashes.txt").unlink()
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("format = 2\n", ""))


def test_a_folder_from_before_there_were_hashes_is_read_and_gets_them(true, folder):
    as_before(folder)
    assert resumed_or_refused(true, folder) == "made again"
    assert load_trained(folder).state.round == ROUNDS
    change_digit(folder / "rounds.jsonl", 0)
    assert "rounds.jsonl is damaged" in resumed_or_refused(true, folder)


def test_of_a_folder_without_hashes_what_can_be_seen_is_refused(true, folder):
    as_before(folder)
    for name, damages in (("labels.npy", LABELS), ("rounds.jsonl", LINES)):
        whole = (folder / name).read_bytes()
        for damage in damages.values():
            (folder / name).write_bytes(damage)
            assert f"{name} is damaged (" in resumed_or_refused(true, folder)
        (folder / name).write_bytes(whole)


def test_what_a_run_wrote_without_its_settings_is_not_written_over(true, folder):
    (folder / "config.toml").unlink()
    with pytest.raises(
        RunFolderError, match=r"config\.toml is damaged \(it is missing, and other files of a run are present"
    ):
        run_settings(SETTINGS, folder, data=true[1])


def test_a_kill_between_any_two_writes_loses_nothing(true, tmp_path, monkeypatch):
    """A run dies before its n-th write, for every n until it lives; resumed, it gives the true numbers.

    The writes: 3 to begin; in each of 3 rounds record, hashes, the state's hash, labels, sketches and state, from the
    second on the state before; and 4 to end (clients, what sets clusters apart, hashes, summary).
    """
    deaths = 0
    while True:
        out, left = tmp_path / str(deaths), [deaths]
        with monkeypatch.context() as patch:
            dying(patch, left)
            try:
                run_settings(replace(SETTINGS, rounds=3), out, data=true[1])
                break
            except Death:
                deaths += 1
        assert resumed_or_refused(true, out) == "made again"
        assert (out / "sketches.safetensors").read_bytes() == (true[0] / "sketches.safetensors").read_bytes()
    assert deaths == 3 + 3 * 6 + 2 + 4


class Death(BaseException):
    """Ends a run at once, without any clean-up."""


def dying(patch, left):
    def before(call):
        def counted(*words):
            left[0] -= 1
            if left[0] < 0:
                raise Death
            return call(*words)

        return counted

    patch.setattr("coterie.experiments.run_folder.os.replace", before(shutil.move))
    patch.setattr("coterie.experiments.run_folder.RunFolder._append", before(RunFolder._append))


def flips(folder, count, seed):
    """Yield places in the files of a folder, each file in turn: its name, a byte and a bit."""
    rng = np.random.default_rng(seed)
    files = sorted(path.name for path in folder.iterdir())
    for number in range(count):
        name = files[number % len(files)]
        yield name, int(rng.integers((folder / name).stat().st_size)), int(rng.integers(8))


@pytest.mark.parametrize("folder", ["finished", "unfinished"], indirect=True)
def test_a_bit_flipped_anywhere_gives_no_other_numbers(true, folder, tmp_path):
    """At 200 places of a folder: reading and resuming give the true numbers, or are refused."""
    seen = {"made again": 0, "refused": 0}
    for name, place, bit in flips(folder, 200, 13):
        copy = shutil.copytree(folder, tmp_path / "copy")
        damaged = bytearray((copy / name).read_bytes())
        damaged[place] ^= 1 << bit
        (copy / name).write_bytes(damaged)
        read_or_refused(true, copy)
        seen["made again" if resumed_or_refused(true, copy) == "made again" else "refused"] += 1
        shutil.rmtree(copy)
    assert min(seen.values()) > 40, seen


def read_or_refused(true, folder):
    """Read a folder as compare and assign do: they get the true results, or refuse it."""
    try:
        summary = load_summary(folder)
        assert summary is None or without_measurements([summary]) == true[2]
        trained = load_trained(folder)
    except RunFolderError:
        return
    whole = load_trained(true[0])
    np.testing.assert_array_equal(trained.state.stack.params, whole.state.stack.params)
    assert without_measurements(trained.members) == without_measurements(whole.members)
    assert (trained.seed, trained.unit, trained.model.text) == (whole.seed, whole.unit, whole.model.text)


def own_table(path, sick="0"):
    """Two clients' rows; ``sick`` is a cell of the seventh row, neither first nor last of its client."""
    rows = [f"{'ab'[i >= 20]},{i % 7}.25,{i % 2}" for i in range(40)]
    rows[6] = f"a,{sick},0"
    path.write_text("who,dose,sick\n" + "\n".join(rows) + "\n")


@pytest.mark.parametrize("divided", [False, True])
def test_a_run_is_not_resumed_on_a_file_in_which_one_cell_was_changed(tmp_path, divided):
    own_table(tmp_path / "own.csv", "6.25")
    how = {"partition": "iid", "clients": 2, "ignore": "who"} if divided else {"client": "who"}
    settings = Settings("fedavg", data=str(tmp_path / "own.csv"), label="sick", rounds=1, model="linear", **how)
    run_settings(settings, tmp_path / "run")
    own_table(tmp_path / "own.csv", "6.2501")
    with pytest.raises(RunFolderError, match=r"was begun on other files than those of own.csv now: they were changed"):
        run_settings(replace(settings, rounds=2), tmp_path / "run", resume=True)
    own_table(tmp_path / "own.csv", "6.25")
    assert run_settings(replace(settings, rounds=2), tmp_path / "run", resume=True).summary["rounds"] == 2


@pytest.mark.parametrize(
    ("other", "line"),
    [({"threads": 2}, "threads = 2, not 1"), ({"plan": "workers"}, "plan = workers, not auto"), ({}, None)],
)
def test_resuming_with_other_threads_or_another_plan_is_warned_of(true, begun, tmp_path, caplog, other, line):
    out = shutil.copytree(begun, tmp_path / "run")
    run_settings(replace(SETTINGS, **other), out, resume=True, data=true[1])
    warnings = [record.getMessage() for record in caplog.records]
    ending = "its numbers may differ in their last bits from those of an unbroken run"
    assert warnings == ([] if line is None else [f"{out} is resumed with {line}: {ending}"])


def test_a_machine_with_other_cores_is_warned_of_too(true, tmp_path, caplog, monkeypatch):
    free = replace(SETTINGS, threads=None, rounds=3)
    monkeypatch.setattr("coterie.experiments.session.available_cores", lambda: 1)
    run_settings(free, tmp_path / "run", data=true[1])
    monkeypatch.setattr("coterie.experiments.resuming.available_cores", lambda: 3)
    run_settings(replace(free, rounds=4), tmp_path / "run", resume=True, data=true[1])
    assert "is resumed with threads = 3, not 1: " in caplog.text


def test_workers_give_the_same_bits_with_any_number_of_threads(true):
    one, two = (run_settings(replace(SETTINGS, plan="workers", threads=n), data=true[1]).state for n in (1, 2))
    np.testing.assert_array_equal(one.stack.params, two.stack.params)


@pytest.mark.parametrize("folder", [False, True])
def test_compare_takes_no_finished_run_on_a_file_that_was_changed_since(tmp_path, folder):
    own_table(tmp_path / "own.csv", "6.25")
    (tmp_path / "sites").mkdir()
    for name in "ab":
        own_table(tmp_path / "sites" / f"{name}.csv", "6.25")
    changed = tmp_path / "sites" / "b.csv" if folder else tmp_path / "own.csv"
    where = (
        ["--data", str(tmp_path / "sites"), "--ignore", "who"]
        if folder
        else ["--data", str(changed), "--client", "who"]
    )
    words = [
        "compare",
        "fedavg",
        "--no-local",
        *where,
        "--label",
        "sick",
        "--rounds",
        "1",
        "--model",
        "linear",
        "--json",
    ]
    words += ["--quiet", "--seeds", "1", "--out", str(tmp_path / "c")]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.output
    assert CliRunner().invoke(app, words).stdout == first.stdout
    own_table(changed, "6.2501")
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert "was begun on other files than those of" in refused.stderr
