"""Files, names and readers that mean ill: a file that swells, a name that a terminal would obey, a pipe that closes."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import zipfile

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from coterie import limits
from coterie.cli.main import app
from coterie.data.tables.files import open_table
from coterie.deploy.audit import audit_table
from coterie.deploy.config import load_site
from coterie.deploy.policy import load_policy
from coterie.deploy.status import status_table
from coterie.engine.local_training import PADDED, draw, pad
from coterie.errors import DataError, UsageError
from coterie.experiments.run_folder import STATE, load_state
from coterie.experiments.sweep import folder_name
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.server.clustering.clusterers import meanshift
from coterie.terminal import LONGEST, line, plain

EVIL = {
    "a tag that closes nothing": "[/x]",
    "a tag that opens": "[red]x",
    "a link": "[link=file:///etc]x[/link]",
    "a face": ":smile:",
    "a cleared screen": "\x1b[2Jx",
    "a title of the window": "\x1b]0;x\x07",
    "an eight-bit command": "\x9b2Jx",
    "a line end": "x\ny",
    "a carriage return": "x\ry",
    "a tabulator": "x\ty",
    "a deletion": "x\x08y",
    "letters from right to left": "x\u202ey",
    "a line separator": "x\u2028y",
    "a formula of a picture": "$x^$",
}
"""Names of clients, files and columns."""

OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")
"""What may not reach a terminal; a line end may stand at the end of a line."""


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return CliRunner().invoke(app, list(words))

    return run


def one_line(result) -> str:
    """The one line that a refused request is answered with."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert not OBEYED.search(result.stderr)
    assert len(result.stderr) < 1600
    return result.stderr


def table_of(path, names, column="who"):
    """A table of two clients, six rows each."""
    rows = [f'"{name}",{i % 5}.5,{i % 2}' for name in names for i in range(6)]
    path.write_text(f"{column},dose,label\n{''.join(row + chr(10) for row in rows)}", newline="")


def compact(text: str) -> str:
    """A table without the spaces and lines that its columns need."""
    return re.sub(r"[\s│┃]+", "", text)


class TestNames:
    @pytest.mark.parametrize("name", EVIL.values(), ids=EVIL)
    def test_of_clients_and_folders_are_shown_as_they_are_written(self, call, tmp_path, name):
        folder = tmp_path / name.replace("/", "%")
        folder.mkdir()
        table_of(folder / "own.csv", [name, "b", "c"])
        own = ("--data", f"./{folder.name}/own.csv", "--client", "who", "--clusters", "2", "--model", "linear")
        found = call("run", "wecfl", *own, "--rounds", "1", "--out", f"{folder.name}/out")
        for result in (found, call("data", "show", f"./{folder.name}/own.csv", "--client", "who")):
            assert result.exit_code == 0, result.output
            assert not OBEYED.search(result.output)
            assert compact(plain(name)) in compact(result.stdout)
        assert f"results are in {plain(folder.name)}/out\n" in found.stdout
        assert plain(folder.name) in one_line(call("run", "fedavg", "--data", f"./{folder.name}/none.csv"))

    def test_are_names_in_pictures_too(self, call, tmp_path):
        folder = tmp_path / "".join(EVIL.values()).replace("/", "%")
        folder.mkdir()
        table_of(folder / "own.csv", EVIL.values())
        where = f"./{folder.name}/own.csv"
        own = ("--client", "who", "--rounds", "1")
        found = call("compare", "fedavg", "--data", where, *own, "--model", "linear", "--seeds", "1", "--no-local")
        assert found.exit_code == 0, found.output
        assert f"picture: runs/compare-{folder_name(where)}/comparison.png\n" in found.stdout
        shown = call("data", "show", where, *own, "--picture", "own.png")
        assert shown.exit_code == 0, shown.output
        assert (tmp_path / "own.png").stat().st_size > 10_000

    @pytest.mark.parametrize("name", EVIL.values(), ids=EVIL)
    def test_of_columns_are_shown_as_they_are_written(self, call, tmp_path, name):
        table_of(tmp_path / "own.csv", ["a", "b"], f'"{name}"')
        result = call("data", "check", "own.csv", "--client", "nobody")
        assert result.exit_code == 2
        assert not OBEYED.search(result.output)
        assert compact(plain(" ".join(name.split()))) in compact(result.stdout)

    @pytest.mark.parametrize("name", EVIL.values(), ids=EVIL)
    def test_of_sites_and_what_they_say_are_shown_as_they_are_written(self, name):
        site = {"now": name, "when": name}
        told = {
            "state": "failed",
            "run": name,
            "error": name,
            "out": "nowhere",
            "rounds": 3,
            "sites": {name: site},
            "notes": [name],
        }
        logged = {"time": name, "run": name, "round": 1, "asked": name, "outcome": name, "reason": name, "left": None}
        for table in (status_table(told, {name: name}), audit_table([logged])):
            shown = io.StringIO()
            Console(width=400, file=shown).print(table)
            assert not OBEYED.search(shown.getvalue())
            assert compact(plain(name)) in compact(shown.getvalue())

    def test_that_are_not_utf8_are_refused(self, call, tmp_path):
        (tmp_path / "sites").mkdir()
        for name in (b"a.csv", b"b\xff.csv"):
            table_of(tmp_path / "sites" / os.fsdecode(name), ["a", "b"])
        told = one_line(call("run", "fedavg", "--data", "./sites", "--ignore", "who"))
        assert told == "error: sites/b\\xff.csv: has a name that is not UTF-8; rename it\n"

    def test_that_are_not_utf8_may_be_those_of_results(self, call, tmp_path):
        result = call("run", "fedavg", "--rounds", "1", "--quiet", "--out", os.fsdecode(b"r\xff"))
        assert result.exit_code == 0, result.output
        assert "results are in r\\xff\n" in result.stdout
        assert load_state(tmp_path / os.fsdecode(b"r\xff") / STATE).round == 1

    def test_are_cut_in_the_middle_where_they_are_too_long(self):
        assert line("a" * 50 + "b" * 9000 + "c" * 50).startswith("a" * 50 + "b")
        assert line("a" * 50 + "b" * 9000 + "c" * 50).endswith("b" + "c" * 50)
        assert len(line("b" * 9000)) == LONGEST


class TestFiles:
    @pytest.fixture
    def small(self, monkeypatch):
        """A limit of 10 MB on what swells, so that the test is quick."""
        monkeypatch.setattr(limits, "SMALL", 10**7)

    def bomb(self, path, numbers=3 * 10**6):
        """A small .npz that becomes so many numbers, written as it is compressed."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
            with file.open("x.npy", "w") as array:
                np.lib.format.write_array_header_1_0(
                    array, {"descr": "<f4", "fortran_order": False, "shape": (numbers // 100, 100)}
                )
                array.write(bytes(4 * numbers))
            with file.open("y.npy", "w") as array:
                np.save(array, np.arange(10) % 2)

    @pytest.mark.parametrize("words", [("run", "fedavg", "--data"), ("assign", "r", "--data")])
    def test_that_swell_are_refused_before_they_are_read(self, call, tmp_path, small, words):
        call("run", "fedavg", "--rounds", "1", "--quiet", "--out", "r")
        (tmp_path / "sites").mkdir()
        self.bomb(tmp_path / "sites" / "a.npz")
        file = "./sites" if words[0] == "run" else "sites/a.npz"
        told = one_line(call(*words, file))
        assert re.search(r"a\.npz: has \d+ bytes and would become 0\.0 GB, more than 200 times as much; if that", told)

    def test_that_swell_are_one_problem_of_a_folder(self, call, tmp_path, small):
        (tmp_path / "sites").mkdir()
        self.bomb(tmp_path / "sites" / "a.npz")
        np.savez(tmp_path / "sites" / "b.npz", x=np.full((9, 2), np.nan), y=np.arange(9) % 2)
        found = call("data", "check", "./sites")
        assert [text.split(":")[1].strip() for text in found.stdout.splitlines()[:2]] == ["sites/a.npz", "sites/b.npz"]

    def test_that_say_they_are_larger_than_they_are_are_refused(self, call, tmp_path):
        (tmp_path / "sites").mkdir()
        for name in "ab":
            with zipfile.ZipFile(tmp_path / "sites" / f"{name}.npz", "w") as file, file.open("x.npy", "w") as array:
                np.lib.format.write_array_header_1_0(
                    array, {"descr": "<f4", "fortran_order": False, "shape": (10**14, 3)}
                )
        assert "a.npz: is damaged or no .npz file" in one_line(call("run", "fedavg", "--data", "./sites"))

    def test_of_parquet_that_swell_are_refused(self, tmp_path, monkeypatch):
        pl.DataFrame({"dose": np.zeros(10**6, np.int8), "label": np.zeros(10**6, np.int8)}).write_parquet(
            tmp_path / "a.parquet"
        )
        assert open_table(tmp_path / "a.parquet").columns == ("dose", "label")
        monkeypatch.setattr(limits, "SMALL", 10**6)
        with pytest.raises(DataError, match=r"a\.parquet: has \d+ bytes and would become .* GB, .*; if .* as \.csv$"):
            open_table(tmp_path / "a.parquet")

    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_of_too_many_columns_are_refused(self, call, tmp_path, monkeypatch, suffix):
        names = [f"c{i}" for i in range(100_000 if suffix == "csv" else 100)]
        if suffix == "csv":
            (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join("1" * 100_000) + "\n")
        else:
            pl.DataFrame({name: [1] for name in names}).write_parquet(tmp_path / "wide.parquet")
            monkeypatch.setattr("coterie.data.tables.columns.COLUMNS", 20)
        told = one_line(call("run", "fedavg", "--data", f"wide.{suffix}", "--client", "c0"))
        many = "100,000 columns; at most 20,000" if suffix == "csv" else "100 columns; at most 20"
        assert f"has {many} are read one by one; leave some out, or save it as .npz" in told

    def test_of_as_many_columns_as_are_read_take_time_in_proportion(self, tmp_path):
        """Each name is looked up, not searched for: 20,000 of them four times in no time."""
        (tmp_path / "wide.csv").write_text(",".join(f"c{i}" for i in range(20_000)) + "\n" + ",".join("1" * 20_000))
        table = open_table(tmp_path / "wide.csv")
        (block,) = table.blocks(table.columns)
        assert block.frame.columns == list(table.columns)


TOML = {
    "deep arrays": (b"rounds = " + b"[" * 100_000, "its values are nested too deeply"),
    "deep tables": (b"rounds = " + b"{a=" * 100_000, "its values are nested too deeply"),
    "deep names": (b"[" + b".".join([b"rounds"] * 5000) + b"]\na = 1\nalgorithm = 'fedavg'", "rounds is {'rounds': {"),
    "half a letter": (b"algorithm = '\xff'", "'utf-8' codec can't decode byte 0xff"),
    "NUL": (b"algorithm = 'a\0b'", "Found invalid character '\\x00'"),
    "a number without end": (b"algorithm = 'fedavg'\nrounds = " + b"9" * 5000, "Exceeds the limit"),
    "a large number": (b"algorithm = 'fedavg'\nsteps = 1" + b"0" * 30, "steps is 1e+30; it must be at most 1,000,000"),
    "a command": (b'algorithm = "\\u001b[2Jfedavg"', "cannot read '\\x1b[2Jfedavg'"),
    "two lines": (b'algorithm = "fed\\navg"', "cannot read 'fed\\navg' at"),
    "a strange table": (b"examples = 3\nalgorithm = 'nobody'", "unknown algorithm 'nobody'"),
    "a list": (b"algorithm = ['fedavg']", "bad.toml: algorithm is ['fedavg']; it must be a text"),
    "a date": (b"algorithm = 'fedavg'\nrounds = 2020-01-01", "bad.toml: rounds is datetime.date(2020, 1, 1)"),
    "an infinite number": (b"algorithm = 'fedavg'\nlr = inf", "lr is inf; it must be at most 1e+30"),
}


@pytest.mark.parametrize(("content", "told"), TOML.values(), ids=TOML)
def test_an_experiment_file_that_means_ill(call, tmp_path, content, told):
    (tmp_path / "bad.toml").write_bytes(content)
    assert told in one_line(call("run", "bad.toml"))


def test_an_experiment_file_that_is_too_large(call, tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.files.TOML", 1 << 20)
    (tmp_path / "bad.toml").write_bytes(b"algorithm = 'fedavg'\n#" + b"x" * (1 << 20))
    assert "cannot read bad.toml: it has more than 1 MB; it must be a TOML" in one_line(call("run", "bad.toml"))


@pytest.mark.parametrize("load", [load_policy, load_site], ids=["policy", "site"])
def test_what_a_site_is_told_is_read_with_the_same_care(tmp_path, load):
    for name in ("policy.toml", "site.toml"):
        (tmp_path / name).write_bytes(b"rounds = " + b"[" * 100_000)
    with pytest.raises(UsageError, match="its values are nested too deeply"):
        load(tmp_path / "policy.toml" if load is load_policy else tmp_path)


class TestWorkInProportion:
    def test_a_long_pass_is_laid_side_by_side_a_part_at_a_time(self):
        fit = Fit(steps=5000, batch=7)
        batches = [draw(n, fit, np.random.default_rng(n)) for n in (30, 50)]
        laid = list(pad(batches, np.array([0, 100])))
        assert len(laid) == 5000
        for step, (rows, weights) in enumerate(laid):
            for client, start in enumerate((0, 100)):
                own = batches[client].rows(step) + start
                assert rows[client][: len(own)].tolist() == own.tolist()
                assert weights[client].sum() == pytest.approx(1)
                assert not weights[client][len(own) :].any()

    def test_parts_do_not_change_what_is_laid(self, monkeypatch):
        batches = [draw(n, Fit(epochs=3, batch=8), np.random.default_rng(n)) for n in (5, 20, 33)]
        whole = list(pad(batches, np.arange(3)))
        assert PADDED > 100_000
        monkeypatch.setattr("coterie.engine.local_training.PADDED", 25)
        for one, other in zip(whole, pad(batches, np.arange(3)), strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("points", [np.zeros((200, 200)), 1 - np.eye(200), np.full((200, 200), 1e-300)])
    def test_identical_clients_are_one_cluster_of_mean_shift_at_once(self, points):
        assert set(meanshift()(points, Key(1, 0)).tolist()) == {0}

    def test_more_models_than_memory_are_refused_before_they_are_made(self, call, monkeypatch):
        monkeypatch.setattr(limits, "memory", lambda: 10**6)
        told = one_line(call("run", "local", "--rounds", "1", "--quiet"))
        assert "a run of 40 models of 4,810 numbers needs about 0.0 GB" in told
        assert "take fewer clusters or clients, or a smaller model" in told


class TestPipes:
    """A real process, whose reader goes away or who may warn."""

    def run(self, command, cwd):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONWARNINGS", None)
        coterie = f"{sys.executable} -m coterie.cli.main"
        shell = ["bash", "-c", f"set -o pipefail; {command.format(coterie=coterie)}"]
        return subprocess.run(shell, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100, check=False)

    @pytest.mark.parametrize(
        ("command", "code"),
        [
            ("{coterie} list | head -n 1", 1),
            ("{coterie} run fedavg --rounds 1 --json --quiet | true", 141),
        ],
        ids=["a table", "JSON"],
    )
    def test_that_close_end_a_command_quietly(self, tmp_path, command, code):
        done = self.run(command, tmp_path)
        assert done.stderr == ""
        assert done.returncode in (0, code), "0 where all was written before the reader went"

    def test_warnings_of_libraries_do_not_reach_the_terminal(self, tmp_path):
        (tmp_path / "nets.py").write_text(
            "import warnings, numpy, torch\n"
            "def build(shape, outputs):\n"
            "    warnings.warn('look here')\n"
            "    numpy.float32(1e30) * numpy.float32(1e30)\n"
            "    torch.nn.Linear(0, 2)\n"
            "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs))\n"
        )
        done = self.run("{coterie} run fedavg --rounds 1 --quiet --model nets:build", tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
