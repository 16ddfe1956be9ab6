"""The scripts in examples/ run as they are and print what they promise."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
PROMISED = {
    "quickstart": r"wecfl\(clusters=4\): accuracy 0\.9\d.*rotations: 1\.0",
    "own_tables": r"no problem found.*together: bern davos lugano\n.*value 9: well",
    "compare_methods": r"one model for all +0\.[78].*server clusters +0\.9",
    "own_method": r"fedavg on digits.*by-labels\(clusters=4\) on digits, blocks.*4 clusters, accuracy 0\.9",
    "estimator_on_tables": r"cancer, swapped( +0\.\d\d){4} +0\.9\d\ndigits, turned .* 0\.9\d\ndiabetes.* 0\.[345]\d\n",
    "newcomers": r"(client-0\d9: cluster \d \(right\).*){4}an odd one: no cluster fits",
}
"""By script, what its output must show."""


def test_every_example_promises_something():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_an_example_prints_what_it_promises(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert re.search(PROMISED[name], printed.out, re.S), printed.out
    assert printed.err == ""
    assert [path.name for path in tmp_path.iterdir()] == re.findall(r"in (\S+\.png)", printed.out)
