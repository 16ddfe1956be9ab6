"""Names of scheduled runs: which folder they get, and which one is the last good."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from coterie.deploy.run_names import dated, find_run, runs_of
from coterie.deploy.versions import mismatch
from coterie.errors import UsageError


def made(runs, name, finished):
    (runs / name).mkdir(parents=True)
    if finished:
        (runs / name / "summary.json").write_text("{}")
    return runs / name


def test_the_last_finished_run_of_a_name_is_found(tmp_path):
    first, last, unfinished = (dated("nightly", datetime(2026, 11, day, tzinfo=UTC)) for day in (1, 2, 3))
    made(tmp_path, first, True)
    good = made(tmp_path, last, True)
    made(tmp_path, unfinished, False)
    made(tmp_path, dated("nightly-b", datetime(2026, 12, 1, tzinfo=UTC)), True)
    made(tmp_path, "nightly-old", True)
    assert find_run(tmp_path, "nightly") == good
    assert [path.name for path in runs_of(tmp_path, "nightly")] == [first, last, unfinished]
    assert find_run(tmp_path, first) == tmp_path / first
    assert find_run(tmp_path, str(good)) == good


def test_a_name_without_a_good_run_is_refused_with_what_there_is(tmp_path):
    made(tmp_path, dated("nightly"), False)
    with pytest.raises(UsageError, match="none of the 1 runs named nightly is finished"):
        find_run(tmp_path, "nightly")
    with pytest.raises(UsageError, match="there is no folder or run 'weekly'"):
        find_run(tmp_path, "weekly")


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 65])
def test_a_name_must_be_one_of_a_folder(name):
    with pytest.raises(UsageError, match="name is"):
        dated(name)


@pytest.mark.parametrize("site", ["0.1.0", "0.1.3", "0.1", "0.1.12.dev0"])
def test_a_patch_version_is_not_refused(site):
    assert mismatch(site, "0.1.0") is None


@pytest.mark.parametrize("site", ["0.2.0", "1.1.0", "0.10.0", "0.0.9", "", "new", "0", "9" * 5000])
def test_another_version_is_refused_with_what_to_do(site):
    found = mismatch(site, "0.1.4")
    assert found is not None
    assert "pip install 'coterie[flower]==0.1.*'" in found
    assert len(found) < 200
