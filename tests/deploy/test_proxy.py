"""The door of the server, with a real nginx: sites get through to the Fleet API, and nobody to anything else."""

from __future__ import annotations

import os
import random
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from coterie.deploy.certificates import make_authority, make_server, write_private
from coterie.deploy.config import load_server
from coterie.deploy.deployment import write_deployment
from coterie.deploy.proxy import nginx_command, nginx_text
from coterie.errors import UsageError

MB = 1 << 20


@dataclass
class Behind:
    """What stands behind the door: it notes what reaches it, and answers with the number of bytes it was sent."""

    port: int
    paths: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    first_byte: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Door:
    """A proxy that runs, and who stands behind it."""

    folder: Path
    port: int
    behind: Behind

    def ask(self, target: str, method: str = "POST", body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
        """Send a request just as it is written; the status and the body of the answer."""
        length = "" if "Transfer-Encoding" in headers else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{length}{headers}\r\n"
        with self.connect() as line:
            with suppress(OSError):
                line.sendall(head.encode("latin-1") + body)
            return read_answer(line)

    def connect(self) -> ssl.SSLSocket:
        trusting = ssl.create_default_context(cafile=self.folder / "ca.crt")
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return trusting.wrap_socket(plain, server_hostname="localhost")


def read_answer(line: socket.socket) -> tuple[int, bytes]:
    answer = b""
    with suppress(OSError):
        while block := line.recv(65536):
            answer += block
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


@contextmanager
def upstream(folder: Path) -> Iterator[Behind]:
    """A small TLS server with the certificate of a server's folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            behind.paths.append(self.path)
            size = 0
            for block in self.blocks():
                behind.first_byte.set()
                size += len(block)
            behind.sizes.append(size)
            said = str(size).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_POST  # noqa: N815

        def blocks(self) -> Iterator[bytes]:
            left = int(self.headers.get("Content-Length", 0))
            while left and (block := self.rfile.read1(min(left, 65536))):
                left -= len(block)
                yield block
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline() or b"0", 16):
                    yield self.rfile.read(size)
                    self.rfile.readline()

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    with Quiet(("127.0.0.1", 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        behind = Behind(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield behind
        server.shutdown()
        thread.join()


@contextmanager
def running(folder: Path, port: int, **options: object) -> Iterator[None]:
    """The proxy of a server's folder."""
    process = subprocess.Popen(nginx_command(folder), stderr=subprocess.PIPE, text=True, **options)
    try:
        until = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.02)
        else:
            process.kill()
            pytest.fail(f"nginx did not start: {process.communicate()[1]}")
        yield
    finally:
        process.terminate()
        process.communicate(timeout=10)


def free_port() -> int:
    """A port that nobody listens on and that the system hands to nobody meanwhile."""
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as line, suppress(OSError):
            line.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def prepare(folder: Path) -> int:
    """A deployment for this machine; the port of its door."""
    port = free_port()
    write_deployment(folder, ["a"], port=port)
    return port


@pytest.fixture(scope="module")
def door(nginx, change, tmp_path_factory) -> Iterator[Door]:
    root = tmp_path_factory.mktemp("p") / "f"
    port = prepare(root)
    server = root / "server"
    with upstream(server) as behind:
        change(server / "federation.toml", inner=str(behind.port), largest_mb="8")
        with running(server, port):
            yield Door(server, port, behind)


def test_a_site_gets_through_with_its_body_and_the_answer_comes_back(door):
    before = len(door.behind.paths)
    assert door.ask("/v1/fleet/pull-messages", body=b"x" * 1234) == (200, b"1234")
    assert door.behind.paths[before:] == ["/v1/fleet/pull-messages"]


TRICKS = """
/ /v1 /v1/ /v1/fleet /v1/control/start-run /v1/runtime/x /v1/controller/x /api/v1/control/x /docs /openapi.json
/v1/fleet/ /v1/fleet// /v1/fleet/../control/start-run /v1/fleet/../../v1/control/start-run //v1/control/start-run
//v1/fleet/x /v1//fleet/x /v1/fleet//x /v1/./fleet/x /v1/fleet/./x /v1/control/../fleet/x /v1/fleet/x/..
/v1/control/start-run/../../fleet/x /v1/fleet/x/../../control/start-run /v1/fleet/..%2fcontrol/start-run
/v1/fleet/%2e%2e/control/start-run /v1/fleet/%2E%2E/control/start-run /v1/fleet/.%2e/control/start-run
/v1/fleet/..%2Fcontrol%2Fstart-run /v1/fleet/%2e%2e%2fcontrol%2fstart-run /v1/fleet/%252e%252e/control/start-run
/v1%2fcontrol%2fstart-run /v1/%63ontrol/start-run /v1/c%6fntrol/start-run /v1%2ffleet%2fx /v1/%66leet/x /v1/fleet/%78
/v1/fleet/..\\control\\start-run /v1/fleet/..%5ccontrol%5cstart-run /v1/fleet/..;/control/start-run
/v1/control;/../fleet/x /V1/CONTROL/start-run /v1/Control/start-run /V1/fleet/x /v1/FLEET/x /v1/fleet/X
/v1/control/start-run%3f/../../fleet/x /v1/control/start-run?/../../fleet/x /v1/control/start-run#/../../fleet/x
/v1/fleet/x?y=1 /v1/fleet/x? /v1/fleet/x#y /v1/fleet/x%00 /v1/fleet/x%0a /v1/fleet/x%0d%0aHost:a /v1/fleet/x/y
/v1/fleet/x/ /v1/fleet/x%23/../../control/start-run http://localhost/v1/control/start-run
https://127.0.0.1/v1/control/start-run http://localhost/v1/fleet/../control/start-run v1/fleet/x ../v1/control/x *
/v1/fleet/\xe9 /v1/fleet/%c0%ae%c0%ae/control/x
"""


@pytest.mark.parametrize("target", TRICKS.split())
def test_no_other_path_gets_through_however_it_is_written(door, target):
    before = len(door.behind.paths)
    assert door.ask(target)[0] in (400, 403)
    assert door.behind.paths[before:] == []


def test_what_is_refused_is_forbidden(door):
    assert door.ask("/v1/control/start-run")[0] == 403
    assert door.ask("/v1/fleet/../control/start-run")[0] == 403
    assert door.ask("/")[0] == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "post"])
def test_no_other_method_gets_through(door, method):
    before = len(door.behind.paths)
    assert door.ask("/v1/fleet/x", method)[0] in (400, 403, 405)
    assert door.behind.paths[before:] == []


def test_a_second_request_cannot_hide_in_the_first(door):
    before = len(door.behind.paths)
    hidden = b"0\r\n\r\nPOST /v1/control/start-run HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    both = f"Transfer-Encoding: chunked\r\nContent-Length: {len(hidden)}\r\n"
    assert door.ask("/v1/fleet/x", body=hidden, headers=both)[0] == 400
    door.ask("/v1/fleet/x", body=hidden)
    door.ask("/v1/fleet/x", body=hidden, headers="Transfer-Encoding: xchunked\r\n")
    door.ask("/v1/fleet/x", body=hidden, headers="Transfer-Encoding: chunked\r\n")
    assert set(door.behind.paths[before:]) == {"/v1/fleet/x"}


def test_a_header_cannot_rewrite_the_path(door):
    before = len(door.behind.paths)
    lies = (
        "X-Original-URL: /v1/control/start-run\r\nX-Rewrite-URL: /v1/control/start-run\r\nX-Accel-Redirect: /v1/x\r\n"
    )
    door.ask("/v1/fleet/x", headers=lies)
    assert door.behind.paths[before:] == ["/v1/fleet/x"]


def test_plain_http_is_refused(door):
    before = len(door.behind.paths)
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as line:
        line.sendall(b"POST /v1/fleet/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        assert read_answer(line)[0] == 400
    assert door.behind.paths[before:] == []


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_of_tls_are_refused(door):
    old = ssl.create_default_context(cafile=door.folder / "ca.crt")
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as line, pytest.raises(ssl.SSLError):
        old.wrap_socket(line, server_hostname="localhost")


@pytest.mark.parametrize(("size", "status"), [(8 * MB, 200), (8 * MB + 1, 413)])
def test_a_body_up_to_the_limit_passes_and_a_larger_one_does_not(door, size, status):
    before = len(door.behind.paths)
    assert door.ask("/v1/fleet/push-object", body=bytes(size))[0] == status
    assert door.behind.sizes[before:] == ([size] if status == 200 else [])


def test_a_body_without_a_length_is_limited_too(door):
    def chunks(count: int) -> bytes:
        return b"".join(b"100000\r\n" + bytes(MB) + b"\r\n" for _ in range(count)) + b"0\r\n\r\n"

    chunked = "Transfer-Encoding: chunked\r\n"
    assert door.ask("/v1/fleet/x", body=chunks(7), headers=chunked) == (200, str(7 * MB).encode())
    assert door.ask("/v1/fleet/x", body=chunks(9), headers=chunked)[0] != 200


def test_a_body_is_passed_on_while_it_still_comes(door):
    door.behind.first_byte.clear()
    with door.connect() as line:
        line.sendall(b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\nConnection: close\r\n\r\n")
        line.sendall(bytes(100000))
        assert door.behind.first_byte.wait(5)
        line.sendall(bytes(100000))
        assert read_answer(line) == (200, b"200000")


def test_the_version_of_nginx_is_not_told(door):
    with door.connect() as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        head = line.recv(65536)
    assert b"Server: nginx\r\n" in head
    assert b"nginx/" not in head


def test_what_was_refused_is_logged_and_the_rest_is_not(door):
    door.ask("/v1/control/look-for-this")
    door.ask("/v1/fleet/not-for-this")
    until = time.monotonic() + 5
    log = door.folder / "nginx" / "refused.log"
    while "look-for-this" not in log.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    assert "/v1/control/look-for-this" in log.read_text()
    assert "not-for-this" not in log.read_text()


def test_a_stranger_behind_the_door_is_not_spoken_to(nginx, change, tmp_path):
    port = prepare(tmp_path / "f")
    server, stranger = tmp_path / "f" / "server", tmp_path / "stranger"
    stranger.mkdir()
    pair = make_server(make_authority(), "localhost")
    write_private(stranger / "server.key", pair.private)
    (stranger / "server.crt").write_bytes(pair.public)
    with upstream(stranger) as behind:
        change(server / "federation.toml", inner=str(behind.port))
        with running(server, port):
            assert Door(server, port, behind).ask("/v1/fleet/x")[0] == 502
        assert behind.paths == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; others test it all the time")
def test_it_runs_as_an_ordinary_user_and_writes_in_its_own_folder_alone(nginx, change):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        port = prepare(Path(folder) / "f")
        server = Path(folder) / "f" / "server"
        nginx_command(server)
        for path in (server, *server.rglob("*")):
            os.chown(path, 65534, 65534)
        with upstream(server) as behind:
            change(server / "federation.toml", inner=str(behind.port))
            with running(server, port, user=65534, group=65534, extra_groups=[]):
                assert Door(server, port, behind).ask("/v1/fleet/x", body=bytes(MB)) == (200, str(MB).encode())
                assert (server / "nginx" / "nginx.pid").is_file()
                temporary = {path.name for path in (server / "nginx").iterdir() if path.is_dir()}
                assert temporary == {"body", "proxy", "fastcgi", "uwsgi", "scgi"}


def test_the_configuration_follows_the_federations_file_at_every_start(nginx, change, tmp_path):
    prepare(tmp_path / "f")
    server = tmp_path / "f" / "server"
    (server / "nginx.conf").write_text("location / { proxy_pass https://127.0.0.1:8000; }")
    change(server / "federation.toml", largest_mb="77")
    command = nginx_command(server)
    assert command == (nginx, "-p", str(server.resolve()), "-c", "nginx.conf")
    assert (server / "nginx.conf").read_text() == nginx_text(load_server(server))
    assert "client_max_body_size 77m;" in (server / "nginx.conf").read_text()


def test_a_public_host_listens_everywhere_and_this_machine_on_loopback(made, tmp_path):
    port = prepare(tmp_path / "f")
    assert "listen 9443 ssl;" in nginx_text(load_server(made / "server"))
    assert f"listen 127.0.0.1:{port} ssl;" in nginx_text(load_server(tmp_path / "f" / "server"))


def test_without_nginx_the_error_says_what_to_install(own, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(UsageError, match=r"nginx is not installed; .* apt-get install nginx-light"):
        nginx_command(own / "server")
