"""Exports: a folder that predicts elsewhere holds exactly the network that was scored, and says what it is."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import coterie as ct
from coterie.api.exports import mean_score
from coterie.cli.main import app
from coterie.data.tables import problems as tables
from coterie.data.tables.features import KINDS
from coterie.data.tables.schema import Schema
from coterie.errors import DataError, ModelError, UnknownName, UsageError
from coterie.experiments.main_score import main_score
from coterie.experiments.served_run import load_served_run
from coterie.exporting import folder as folders
from coterie.exporting import formats, table
from coterie.exporting.card import GUESS, LOCAL, ONE, THIS
from coterie.exporting.folder import FORMATS, Export, files_of, read_network, write_folder
from coterie.exporting.outputs import answering, outputs_of
from coterie.models.zoo import build_model
from coterie.target import Target

SERVED = {
    "fedavg": "one model for everybody",
    "local": "a model for each client",
    "wecfl(2)": "a model for each cluster",
    "ifca(2,fresh=true)": "chosen again before a test",
    "wecfl(2)+cam": "a sum of two networks",
    "ifca(2)+finetune(steps=3)": "fine-tuned",
    "fedsoft(2)": "a mixture of parameters, fine-tuned",
    "fedavg-ensemble(members=2)": "a mixture of outputs",
    "vote(wecfl(2,shots=1),ifca(2))+finetune(steps=1)": "a mixture of outputs, each fine-tuned",
}
"""Every kind of serving, by an algorithm that has it."""


def patients(clients=("bern", "Chur", "Lugano TI"), rows=24, seed=0):
    """A table of three hospitals in which illness depends on age and sex, the other way round in the last."""
    rng = np.random.default_rng(seed)
    count = rows * len(clients)
    age, sex = rng.normal(50, 15, count).round(1), rng.choice(["f", "m"], count)
    site = np.repeat(clients, rows)
    ill = ((age > 50) == (sex == "f")) ^ (site == clients[-1])
    cost = 1000 + 30 * age + 200 * (sex == "m") + rng.normal(0, 5, count)
    return pl.DataFrame(
        {
            "id": np.arange(count),
            "site": site,
            "age": age,
            "sex": sex,
            "ill": np.where(ill, "yes", "no"),
            "cost": cost.round(2),
            "days": (cost / 100).round(2),
            "fever": (age > 55).astype(int),
            "pain": (sex == "m").astype(int),
        }
    )


LABELS = ("ill", "cost", "days", "fever", "pain")


@cache
def trained(algorithm="wecfl(2)", label="ill", model="mlp(8)"):
    named = label.split(",")
    ignore = ("id", *(name for name in LABELS if name not in named))
    clients = ct.from_frame(patients(), client="site", label=label, ignore=ignore)
    return ct.run(algorithm, clients, model=model, rounds=2, steps=3, seed=1, threads=1)


def answers_of(run, client):
    """What the library itself answers for the test rows of a client, by its own code for probabilities and units."""
    x = run.data.test.of(run.data.names.index(client))[0]
    found = run.predict(x, client, proba=run.model.classes is not None)
    return x, found.reshape(len(x), -1)


def close(found, expected):
    scale = max(1.0, float(np.abs(expected).max()))
    return found.shape == expected.shape and np.allclose(found / scale, expected / scale, rtol=0, atol=1e-5)


def answers_in(path, kind, x):
    if kind == "onnx":
        return formats.run_onnx((path / "model.onnx").read_bytes(), x)
    network = read_network(path) if kind == "safetensors" else torch.export.load(path / "model.pt2").module()
    with torch.no_grad():
        return network(torch.from_numpy(x)).numpy()


class TestWhatIsExportedIsWhatWasScored:
    @pytest.mark.parametrize("algorithm", SERVED)
    def test_for_every_kind_of_serving(self, algorithm, tmp_path):
        run = trained(algorithm)
        for client in run.data.names:
            x, expected = answers_of(run, client)
            found = answers_in(run.export(tmp_path / client, client, format="safetensors"), "safetensors", x)
            assert close(found, expected)
            row = next(row for row in run.results.trained.members if row["client"] == client)
            right = found.argmax(1) == run.data.test.of(run.data.names.index(client))[1]
            assert right.mean() == pytest.approx(float(row["accuracy"])), "the score was that of another model"

    def test_chosen_again_whatever_was_chosen_before(self):
        run = trained("ifca(2,fresh=true)")
        state = replace(run.state, labels=1 - run.labels)
        other = replace(run, results=replace(run.results, trained=replace(run.results.trained, state=state)))
        for client in run.data.names:
            assert close(answers_of(other, client)[1], answers_of(run, client)[1])

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["onnx", "torch"])
    @pytest.mark.parametrize("algorithm", SERVED)
    def test_in_every_format(self, algorithm, kind, tmp_path):
        run = trained(algorithm)
        for client in run.data.names:
            x, expected = answers_of(run, client)
            assert close(answers_in(run.export(tmp_path / client, client, format=kind), kind, x), expected)

    @pytest.mark.parametrize("label", ["cost", "cost,days", "fever,pain"])
    def test_in_the_units_of_the_table(self, label, tmp_path):
        run = trained("wecfl(2)", label)
        x, expected = answers_of(run, "Chur")
        if label != "fever,pain":
            assert abs(expected).max() > 10, "these are no standardised numbers"
        assert close(answers_in(run.export(tmp_path / "a", "Chur", format="safetensors"), "safetensors", x), expected)

    @pytest.mark.slow
    @pytest.mark.parametrize("label", ["cost", "cost,days", "fever,pain"])
    def test_in_the_units_of_the_table_as_onnx_too(self, label, tmp_path):
        run = trained("wecfl(2)", label)
        x, expected = answers_of(run, "Chur")
        assert close(answers_in(run.export(tmp_path / "b", "Chur"), "onnx", x), expected)

    def test_as_a_program_of_torch(self, tmp_path):
        run = trained()
        x, expected = answers_of(run, "bern")
        path = run.export(tmp_path / "bern", "bern", format="torch")
        assert close(answers_in(path, "torch", x), expected)
        assert close(answers_in(path, "torch", x[:1]), expected[:1])

    @pytest.mark.parametrize("rule", ["softmax", "logits", "majority"])
    @pytest.mark.parametrize("target", [Target(3), Target(2, 3), Target()])
    def test_mixtures_by_every_rule(self, rule, target):
        from coterie.models.combined import Mixture

        model = build_model("mlp(4)", (5,), target.classes, target.columns)
        members = [model.with_row(*model.initial(seed)) for seed in (1, 2, 3)]
        mixture = Mixture(members, rule, target).eval()
        outputs = outputs_of(target)
        description = formats.rebuilding(mixture, model, outputs)
        again = formats.rebuilt(json.loads(json.dumps(description)), formats.weights_file(mixture), model)
        x = formats.probes(model)
        assert torch.equal(answering(again, outputs)(x), answering(mixture, outputs)(x))

    def test_a_folder_of_another_client_answers_otherwise(self, tmp_path):
        run = trained()
        x, expected = answers_of(run, "bern")
        other = run.export(tmp_path / "other", "Lugano TI", format="safetensors")
        assert not close(answers_in(other, "safetensors", x), expected)


ZOO = {
    "mlp(6,5)": (7,),
    "logistic": (7,),
    "tabular(8)": (7,),
    "cnn": (1, 28, 28),
    "lenet": (3, 32, 32),
    "cnn-joint": (1, 28, 28),
    "cnn-lcfl": (1, 28, 28),
    "tiny-vgg(4)": (3, 32, 32),
    "resnet34": (3, 32, 32),
    "bag(6)": (9,),
}


def exported(model, seed=1):
    """An export of a network with weights, and running statistics, that are drawn."""
    params, buffers = model.initial(seed)
    drawn = np.random.default_rng(seed).uniform(0.5, 1.5, buffers.shape).astype(np.float32)
    card = folders.Card(title="a network", algorithm="fedavg", data="toy", rounds=1, seed=seed)
    return Export(network=model.with_row(params, drawn), model=model, card=card)


class TestNetworks:
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["onnx", "torch"])
    @pytest.mark.parametrize("text", ZOO)
    def test_the_whole_zoo(self, text, kind, tmp_path):
        model = build_model(text, ZOO[text], 3, vocabulary=11 if text.startswith("bag") else None)
        export = exported(model)
        path = write_folder(tmp_path / "net", [("", export)], kind)
        x = formats.probes(model)
        with torch.no_grad():
            expected = torch.softmax(export.network(x), 1).numpy()
        assert close(answers_in(path, kind, x.numpy()), expected)
        assert close(answers_in(path, kind, x.numpy()[:1]), expected[:1])

    @pytest.mark.parametrize("text", ["cnn", "bag(6)"])
    def test_weights_by_name(self, text, tmp_path):
        model = build_model(text, ZOO[text], 3, vocabulary=11 if text == "bag(6)" else None)
        export = exported(model)
        path = write_folder(tmp_path / "net", [("", export)], "safetensors")
        x = formats.probes(model)
        assert torch.equal(read_network(path, answers=False)(x), export.network(x))

    def test_one_that_no_format_takes_is_refused_in_one_line(self, tmp_path):
        class Wayward(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(3, 2)

            def forward(self, x):
                return self.head(x) if float(x.sum()) > 0 else -self.head(x)

        run = ct.run("fedavg", numbers(), model=Wayward, rounds=1, seed=1, threads=1)
        for kind, others in {"onnx": "torch or safetensors", "torch": "safetensors"}.items():
            with pytest.raises(ModelError, match=f"cannot be exported as .*; use --format {others}$") as error:
                run.export(tmp_path / "deep" / "net", 0, format=kind)
            assert "\n" not in str(error.value)
        assert not list(tmp_path.iterdir()), "a refusal leaves nothing behind"
        path = run.export(tmp_path / "net", 0, format="safetensors")
        with pytest.raises(ModelError, match="give it as model="):
            read_network(path)
        x = torch.ones(2, 3)
        assert torch.equal(read_network(path, run.model, answers=False)(x), run.model_for(0)(x))

    def test_a_file_that_answers_otherwise_is_refused(self, monkeypatch):
        export, other = (exported(build_model("mlp(4)", (3,), 2), seed) for seed in (1, 2))
        load, read = torch.export.load, []
        monkeypatch.setattr(torch.export, "load", lambda file: read.append(load(file)) or read[0])
        files_of(export, "torch")
        with pytest.raises(ModelError, match="answers otherwise as torch than in PyTorch"):
            files_of(other, "torch")


def numbers():
    rng = np.random.default_rng(3)
    x = [rng.normal(size=(12, 3)).astype(np.float32) for _ in range(3)]
    return ct.from_arrays({name: (each, (each[:, 0] > 0).astype(int)) for name, each in zip("abc", x, strict=True)})


BLOCKED = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(name + " is blocked here")
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
sys.path.insert(0, {folder!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_script(path, file, *blocked):
    code = BLOCKED.format(blocked=set(blocked) or "{''}", folder=str(path))
    return subprocess.run(
        [sys.executable, "-c", code, str(path / "predict.py"), str(file)], capture_output=True, text=True, check=False
    )


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


class TestTheScript:
    def test_predicts_without_coterie_and_torch(self, tmp_path):
        run = trained("fedavg-ensemble(members=2)", "ill")
        path, frame = run.export(tmp_path / "bern", "bern"), patients(seed=5)
        frame.drop("ill").write_csv(tmp_path / "new.csv")
        done = run_script(path, tmp_path / "new.csv", "torch", "coterie", "polars")
        assert done.returncode == 0, done.stderr
        found, expected = rows_of(done.stdout), run.predict(frame, "bern", proba=True)
        assert [row["prediction"] for row in found] == run.predict(frame, "bern").tolist()
        chances = np.array([[float(row[f"probability_{name}"]) for name in ("no", "yes")] for row in found])
        assert np.allclose(chances, expected, atol=1e-5)
        assert run_script(path, tmp_path / "new.csv", "onnxruntime").returncode == 1, "the block blocks nothing"

    def test_ends_quietly_where_only_the_first_lines_are_read(self, tmp_path):
        path = trained().export(tmp_path / "bern", "bern", format="safetensors")
        code = "import numpy as np; from table import write; write(np.full((100_000, 2), 0.5))"
        with subprocess.Popen(
            [sys.executable, "-c", code], cwd=path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as script:
            assert script.stdout.readline().startswith("prediction")
            script.stdout.close()
            assert script.stderr.read() == ""
        assert script.returncode == 1

    def test_names_every_bad_row_with_its_line(self, tmp_path):
        path = trained().export(tmp_path / "bern", "bern", format="safetensors")
        (tmp_path / "bad.csv").write_text('age,sex\n40,f\n"4\n0",m\n,f\n50,x\n')
        with pytest.raises(SystemExit) as ended:
            table.read(tmp_path / "bad.csv", path)
        said = [
            "line 5: column 'age' has '', a missing value; fill it in or leave the row out",
            "line 3: column 'age' has '4\\n0', where a number is needed that is not too large; correct it",
            "line 6: column 'sex' has 'x', which the model has never seen; correct it",
        ]
        assert str(ended.value).splitlines() == [f"error: {tmp_path / 'bad.csv'}, {each}" for each in said]

    def test_says_in_one_line_what_cannot_be_read(self, tmp_path):
        path = trained().export(tmp_path / "bern", "bern", format="safetensors")
        (tmp_path / "latin.csv").write_bytes(b"age,sex\n40,\xe4\n")
        (tmp_path / "semicolons.csv").write_text("age;sex\n40;f\n")
        (tmp_path / "tabs.csv").write_text("age\tsex\n40\tf\n")
        (tmp_path / "empty.csv").write_text("")
        (tmp_path / "rowless.csv").write_text("age,sex\n")
        (tmp_path / "other.csv").write_text("years,gender\n40,f\n")
        (tmp_path / "folder.csv").mkdir()
        patients().write_parquet(tmp_path / "rows.parquet")
        told = {
            "nothing.csv": " cannot be read: there is no such file; check its name, or name a .csv file in UTF-8",
            "latin.csv": " cannot be read: it is not text in UTF-8; save it as a .csv file in UTF-8",
            "rows.parquet": " cannot be read: it is a Parquet file; save it as a .csv file in UTF-8",
            "folder.csv": " cannot be read: it is a folder; name a .csv file in UTF-8",
            "semicolons.csv": ", line 1: fields are separated by semicolons; save it with commas",
            "tabs.csv": ", line 1: fields are separated by tabs; save it with commas",
            "empty.csv": ", line 1: the file is empty; begin it with the names of its columns",
            "rowless.csv": ", line 1: no rows follow the names of the columns; add some",
            "other.csv": ", line 1: there is no column 'age', 'sex'; add them",
        }
        for name, said in told.items():
            with pytest.raises(SystemExit) as ended:
                table.read(tmp_path / name, path)
            assert str(ended.value) == f"error: {tmp_path / name}{said}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["predict.py"])
            with pytest.raises(SystemExit, match=r"^usage: python predict.py FILE$"):
                table.read(folder=path)

    def test_reads_arrays_where_there_is_no_table(self, tmp_path):
        run = ct.run("fedavg", numbers(), model="mlp(4)", rounds=1, seed=1, threads=1)
        path = run.export(tmp_path / "net", 0, format="safetensors")
        x = np.ones((2, 3))
        np.save(tmp_path / "x.npy", x)
        np.savez(tmp_path / "x.npz", x=x)
        for name in ("x.npy", "x.npz"):
            assert np.array_equal(table.read(tmp_path / name, path), x.astype(np.float32))
        np.save(tmp_path / "x.npy", np.ones((2, 4)))
        with pytest.raises(SystemExit, match=r"shape \(4,\); the model needs \(3,\)"):
            table.read(tmp_path / "x.npy", path)
        for name, content in {"x.npy": b"", "x.npz": b"PK\x03\x04", "y.npy": b"1,2,3\n"}.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(SystemExit, match=r"cannot be read: it holds no array of numbers; save it as a \.npy"):
                table.read(tmp_path / name, path)

    @pytest.mark.slow
    def test_predicts_in_an_environment_of_numpy_and_onnxruntime_alone(self, tmp_path):
        import venv

        venv.create(tmp_path / "venv", with_pip=True)
        python = tmp_path / "venv" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", "numpy", "onnxruntime"], check=True)
        missing = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
        assert missing.returncode == 1
        run = trained("wecfl(2)", "cost")
        path, frame = run.export(tmp_path / "bern", "bern"), patients(seed=5)
        frame.write_csv(tmp_path / "new.csv")
        done = subprocess.run(
            [python, path / "predict.py", tmp_path / "new.csv"], capture_output=True, text=True, check=True
        )
        found = np.array([float(row["prediction"]) for row in rows_of(done.stdout)])
        assert np.allclose(found, run.predict(frame, "bern"), rtol=1e-5)


words = st.one_of(
    st.sampled_from(
        ["", "NA", " 7 ", "-3.5", "1e3", "1_0", "1e101", "inf", "٣", "a", " b b", "c,d", 'e"f', "?", "True"]
    ),
    st.sampled_from(["2013-02-28", "2024-02-29 23:59", "2023-02-29", "2013-01-31T05:06:07.5Z", "31.1.2013"]),
    st.floats(-1e6, 1e6).map(str),
    st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=4),
)

FEATURES = [
    {"name": "v", "kind": "number", "mean": 1.5, "std": 3.0},
    {"name": "v", "kind": "category", "values": ["a", "b b", "c,d"]},
    {"name": "v", "kind": "hashed", "buckets": 5},
    {"name": "v", "kind": "date", "mean": 4000.0, "std": 900.0, "hours": True},
]


class TestTheTable:
    """``table`` is a second reader of schemas, so the first one is the reference."""

    @pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature["kind"])
    @settings(max_examples=40)
    @given(column=st.lists(words, min_size=1, max_size=3), missing=st.sampled_from(["error", "mean", "indicator"]))
    def test_reads_as_the_library_does(self, feature, column, missing):
        schema = {"label": "y", "classes": ["0", "1"], "target": None, "ignored": ["end"], "missing": missing}
        own = {**feature, "indicator": missing == "indicator"}
        with TemporaryDirectory() as home:
            folder = Path(home)
            with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([["v", "end"], *([word, "."] for word in column)])
            (folder / "schema.json").write_text(json.dumps({**schema, "features": [own]}))
            try:
                expected = Schema.load(folder / "schema.json").features_from(folder / "rows.csv")
            except DataError:
                expected = None
            try:
                found = table.read(folder / "rows.csv", folder)
            except SystemExit:
                found = None
        assert (found is None) == (expected is None)
        assert expected is None or (found.dtype == np.float32 and np.allclose(found, expected, rtol=1e-6, atol=1e-6))

    def encoded(self, words, missing="indicator", **feature):
        problems = table.Problems()
        column = table.Column(list(words), list(range(2, len(words) + 2)))
        return table.encode({"name": "v", **feature}, column, {"missing": missing}, problems).tolist(), problems

    def test_dates_become_a_day_and_waves(self):
        """2000-01-02 is a day after the first, a seventh of a week; noon is half of a day."""
        found, problems = self.encoded(
            ["2000-01-02 12:00", ""], kind="date", mean=1.0, std=0.5, hours=True, indicator=True
        )
        week, year = 2 * np.pi / 7, 2 * np.pi * 1.5 / 365.2425
        expected = [1, np.sin(year), np.cos(year), np.sin(week), np.cos(week), 0, -1, 0]
        assert np.allclose(found, [expected, [0] * 7 + [1]], atol=1e-12)
        assert not problems
        assert self.encoded(["1.2.2000"], kind="date", mean=0.0, std=1.0)[1] == [
            "line 2: column 'v' has '1.2.2000', where a date such as 2013-01-31 is needed; correct it"
        ]

    def test_many_words_share_inputs_by_their_hash(self):
        """The CRC-32 of ``123456789`` is known: cbf43926."""
        assert 0xCBF43926 % 5 == 2
        found, problems = self.encoded(["123456789", "NA"], kind="hashed", buckets=5, indicator=True)
        assert found == [[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1]]
        assert not problems

    def test_an_unseen_word_counts_as_missing_where_gaps_are_marked(self):
        category = {"kind": "category", "values": ["a", "b"]}
        assert self.encoded(["b", "c"], **category, indicator=True) == ([[0, 1, 0], [0, 0, 1]], [])
        assert len(self.encoded(["b", "c"], "mean", **category)[1]) == 1

    @pytest.mark.parametrize("indicator", [True, False])
    @pytest.mark.parametrize("words", [["c", "a", "", "d"], ["a", "c"]])
    def test_says_of_unseen_words_what_the_library_says(self, words, indicator, tmp_path, capsys):
        schema = {"label": "y", "classes": ["0", "1"], "target": None, "ignored": ["end"], "missing": "indicator"}
        feature = {"name": "v", "kind": "category", "values": ["a", "b"], "indicator": indicator}
        (tmp_path / "schema.json").write_text(json.dumps({**schema, "features": [feature]}))
        (tmp_path / "rows.csv").write_text("v,end\n" + "".join(f"{word},.\n" for word in words))
        problems = tables.Problems()
        Schema.load(tmp_path / "schema.json").features_from(tmp_path / "rows.csv", problems)
        table.read(tmp_path / "rows.csv", tmp_path)
        (note,) = problems.notes()
        count = "1 row has" if words[0] == "a" else "2 rows have"
        assert note.startswith(f"{count} a value of 'v' that training never saw, such as 'c'; ")
        assert ("read as missing" in note) == indicator
        assert capsys.readouterr().err == f"note: {note}\n"

    def test_knows_every_kind_of_column(self):
        assert set(table.ENCODERS) >= set(KINDS)


class TestTheFolder:
    def test_says_what_the_model_is(self, tmp_path):
        run = trained("wecfl(2)", "ill")
        path = run.export(tmp_path / "bern", "bern", format="safetensors")
        assert {file.name for file in path.iterdir()} == {
            *("model.safetensors", "model.json", "schema.json", "metrics.json", "README.md", "predict.py", "table.py")
        }
        card, metrics = (path / "README.md").read_text(), json.loads((path / "metrics.json").read_text())
        row = next(row for row in run.results.trained.members if row["client"] == "bern")
        assert metrics["scores"][THIS] == pytest.approx(float(row["accuracy"]))
        assert metrics["not_known"] == [name for name in (GUESS, ONE, LOCAL) if metrics["scores"][name] is None]
        for said in (
            "client bern",
            "no, yes",
            "`wecfl(2)`",
            "2 rounds",
            "`age`, `sex`",
            "too few to judge",
            "seed = 1",
        ):
            assert said in card
        assert f"| this model | {metrics['scores'][THIS]:.4g} |" in card

    @pytest.mark.parametrize(("metric", "label", "less"), [("auroc", "ill", "more"), ("mae", "cost", "less")])
    def test_is_judged_by_the_metric_that_the_user_named(self, metric, label, less, tmp_path):
        ignore = ("id", *(name for name in LABELS if name != label))
        clients = ct.from_frame(patients(), client="site", label=label, ignore=ignore)
        run = ct.run(
            "wecfl(2)", clients, model="mlp(4)", rounds=1, steps=1, seed=1, threads=1, metric=metric, references=True
        )
        (row,) = (row for row in run.results.trained.members if row["client"] == "bern")
        columns = {THIS: "metric", GUESS: "guess_metric", ONE: "one_model_metric", LOCAL: "local_metric"}
        path = run.export(tmp_path / "bern", "bern", format="safetensors")
        metrics, card = json.loads((path / "metrics.json").read_text()), (path / "README.md").read_text()
        assert metrics["scores"] == {name: pytest.approx(float(row[column])) for name, column in columns.items()}
        assert f"| {metric} |" in card
        assert f"{metric[0].upper()}{metric[1:]}, {less} is better" in card

    def test_counts_the_clients_without_a_score(self):
        rows = [{"test": "3", "metric": "0.5"}, {"test": "1", "metric": "0.9"}]
        assert mean_score(rows, "metric", main_score(False, "auroc")) == pytest.approx(0.6)
        assert mean_score([*rows, {"test": "1", "metric": ""}], "metric", main_score(False, "auroc")) is None
        card = folders.Card(title="a", algorithm="b", data="c", rounds=1, seed=1, clients=("d", "e"))
        one = replace(card, measure="auroc", scored=1, why="only one class there")
        model = build_model("linear", (2,), 2)
        text = folders.card_text(one, model, None, outputs_of(model.target, None, ()), "")
        assert "It is over 1 of 2 clients; the others have none (only one class there)." in text

    def test_holds_a_schema_that_the_library_reads(self, tmp_path):
        run = trained("wecfl(2)", "cost")
        path = run.export(tmp_path / "bern", "bern", format="safetensors")
        assert Schema.load(path / "schema.json") == run.data.schema
        found = json.loads((path / "schema.json").read_text())
        assert found["input"] == {"name": "x", "type": "float32", "shape": [3]}
        assert found["output"] == {"kind": "numbers", "names": ["cost"], "columns": ["prediction"]}

    def test_of_all_models_has_one_for_each_cluster(self, tmp_path):
        run = trained("wecfl(2)")
        path = run.export(tmp_path / "all", every=True, format="safetensors")
        index = {row["client"]: row["folder"] for row in rows_of((path / "clients.csv").read_text())}
        assert index == {client: f"cluster-{cluster}" for client, cluster in run.clusters().items()}
        for client, home in index.items():
            x, expected = answers_of(run, client)
            assert close(answers_in(path / home, "safetensors", x), expected)
        assert (
            sum(len(json.loads((path / home / "metrics.json").read_text())["clients"]) for home in {*index.values()})
            == 3
        )

    def test_of_all_models_traces_the_network_once(self, tmp_path, monkeypatch):
        run, traced = trained("wecfl(2)+cam"), []
        trace = formats._program
        monkeypatch.setattr(formats, "_program", lambda *each: traced.append(each) or trace(*each))
        path = run.export(tmp_path / "all", every=True)
        index = {row["client"]: row["folder"] for row in rows_of((path / "clients.csv").read_text())}
        assert len({*index.values()}) == 2
        for client, home in index.items():
            x, expected = answers_of(run, client)
            assert close(answers_in(path / home, "onnx", x), expected)
        assert len(traced) == 1

    def test_of_all_models_has_one_for_each_client_where_they_differ(self, tmp_path):
        path = trained("ifca(2)+finetune(steps=3)").export(tmp_path / "all", every=True, format="safetensors")
        assert sorted(each.name for each in path.iterdir()) == [
            *("client-bern", "client-chur", "client-lugano-ti", "clients.csv")
        ]

    @pytest.mark.parametrize("algorithm", ["ifca(2)+finetune(steps=3)", "fedavg-ensemble(members=2)", "fedsoft(2)"])
    def test_of_a_cluster_is_refused_where_clients_have_their_own(self, algorithm, tmp_path):
        with pytest.raises(UsageError, match=r"cluster 0 has no model of its own: .*--client, or take --all"):
            trained(algorithm).export(tmp_path / "x", cluster=0)
        assert not list(tmp_path.iterdir())

    def test_of_a_cluster_that_serves_nobody_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="cluster 7 serves no client; the clusters that do are 0, 1"):
            trained("wecfl(2)").export(tmp_path / "x", cluster=7)

    def test_that_exists_is_not_overwritten(self, tmp_path):
        with pytest.raises(UsageError, match="exists already"):
            trained().export(tmp_path, "bern")

    def test_is_whole_or_absent(self, tmp_path, monkeypatch):
        def fail(path, content):
            if path.name == "metrics.json":
                raise OSError(28, "No space left on device")
            path.write_bytes(content)

        monkeypatch.setattr(folders, "write_atomically", fail)
        with pytest.raises(OSError, match="No space"):
            trained().export(tmp_path / "deep" / "x", "bern", format="safetensors")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("asked", [{}, {"client": "bern", "cluster": 1}, {"client": "bern", "every": True}])
    def test_is_of_one_thing(self, asked, tmp_path):
        with pytest.raises(UsageError, match="name one of these to export"):
            trained().export(tmp_path / "x", **asked)

    def test_has_a_format_of_these(self, tmp_path):
        with pytest.raises(UnknownName, match="known: onnx, safetensors, torch"):
            trained().export(tmp_path / "x", "bern", format="onxx")
        assert FORMATS == ("onnx", "torch", "safetensors")

    def test_with_a_column_that_the_script_cannot_read_is_refused(self):
        run = trained()
        export = Export(
            network=run.model_for("bern"), model=run.model, card=exported(run.model).card, schema=run.data.schema
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.delitem(table.ENCODERS, "category")
            with pytest.raises(UsageError, match="'sex' is of the kind 'category', which is not exported yet"):
                files_of(replace(export), "safetensors")

    def test_damaged_is_refused(self, tmp_path):
        path = trained().export(tmp_path / "x", "bern", format="safetensors")
        (path / "model.json").write_text("{}")
        with pytest.raises(DataError, match="is damaged"):
            read_network(path)
        with pytest.raises(DataError, match="cannot be read"):
            read_network(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished run of the command line, beside its table."""
    home = tmp_path_factory.mktemp("runs")
    patients().write_csv(home / "patients.csv")
    words = "run wecfl(2) --client site --label ill --ignore id,cost,days,fever,pain --model mlp(8) --rounds 2 --quiet"
    told = CliRunner().invoke(app, [*words.split(), "--data", str(home / "patients.csv"), "--out", str(home / "run")])
    assert told.exit_code == 0, told.output
    return home / "run"


class TestTheCommand:
    def test_writes_a_folder(self, run_folder, tmp_path):
        words = ["export", str(run_folder), "--client", "bern", "--format", "safetensors", "-o", str(tmp_path / "bern")]
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0, told.output
        run = ct.load_run(run_folder)
        x, expected = answers_of(run, "bern")
        assert close(answers_in(tmp_path / "bern", "safetensors", x), expected)

    def test_needs_no_data_where_models_are_those_of_clusters(self, run_folder, tmp_path):
        Path(run_folder.parent / "patients.csv").rename(tmp_path / "elsewhere.csv")
        try:
            assert len(load_served_run(run_folder).servings()) == 2
        finally:
            (tmp_path / "elsewhere.csv").rename(run_folder.parent / "patients.csv")

    def test_says_which_clients_there_are(self, run_folder, tmp_path):
        told = CliRunner().invoke(app, ["export", str(run_folder), "--client", "Bern", "-o", str(tmp_path / "x")])
        assert told.exit_code == 2
        assert "unknown client 'Bern'; did you mean 'bern'?" in told.output
