"""The proxy of the server: nginx, which lets sites reach Flower's Fleet API and nobody reach anything else.

Whoever reaches the SuperLink's Control API can run code on this server and ask the sites for anything that their
policies allow, so this is the boundary that matters. The path is checked as it was sent, not as nginx normalises it:
paths with dots, doubled slashes or escapes are refused.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from coterie.deploy.certificates import LOCAL
from coterie.deploy.config import ServerConfig, load_server
from coterie.errors import UsageError

CONFIGURATION = "nginx.conf"
WORKING = "nginx"
"""The folder of nginx's process number, logs and temporary files."""

_PATHS = ("/usr/sbin", "/usr/local/sbin", "/sbin")

_TEXT = """\
# Written from federation.toml at every start; change that file, not this one.
daemon off;
worker_processes 1;
pid {working}/nginx.pid;
error_log {working}/error.log error;

events {{
    worker_connections 1024;
}}

http {{
    server_tokens off;
    map $status $refused {{
        ~^[23] 0;
        default 1;
    }}
    access_log {working}/refused.log combined if=$refused;
    client_body_temp_path {working}/body;
    proxy_temp_path {working}/proxy;
    fastcgi_temp_path {working}/fastcgi;
    uwsgi_temp_path {working}/uwsgi;
    scgi_temp_path {working}/scgi;

    upstream superlink {{
        server 127.0.0.1:{inner};
        keepalive 32;
        keepalive_timeout {kept}s;
    }}

    server {{
        listen {listen} ssl;
        server_name {host};
        ssl_certificate server.crt;
        ssl_certificate_key server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_ciphers ECDHE+AESGCM:ECDHE+CHACHA20;
        ssl_session_cache shared:tls:1m;
        ssl_session_tickets off;
        client_max_body_size {largest}m;
        client_body_timeout {timeout}s;
        send_timeout {timeout}s;

        location / {{
            return 403;
        }}

        location = /v1/fleet {{
            return 403;
        }}

        location /v1/fleet/ {{
            if ($request_uri !~ "^/v1/fleet/[a-z-]+$") {{
                return 403;
            }}
            limit_except POST {{
                deny all;
            }}
            proxy_pass https://superlink;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_connect_timeout 10s;
            proxy_send_timeout {timeout}s;
            proxy_read_timeout {timeout}s;
            proxy_ssl_protocols TLSv1.2 TLSv1.3;
            proxy_ssl_trusted_certificate ca.crt;
            proxy_ssl_verify on;
            proxy_ssl_server_name on;
            proxy_ssl_name {local};
        }}
    }}
}}
"""

TIMEOUT = 600
"""Seconds without a byte after which the connection of a slow site is closed."""

KEPT = 3
"""Seconds for which an idle connection to Flower is kept for the next request; Flower itself closes it after 5."""


def nginx_text(config: ServerConfig) -> str:
    """Return nginx's configuration, relative to the server's folder; if the host is local, listen on loopback only."""
    return _TEXT.format(
        working=WORKING,
        listen=f"127.0.0.1:{config.port}" if config.host in LOCAL else config.port,
        host=config.host,
        largest=config.largest_mb,
        timeout=TIMEOUT,
        inner=config.inner,
        kept=KEPT,
        local=LOCAL[0],
    )


def find_nginx() -> str | None:
    """Return the path of nginx; None if it is not installed."""
    return shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), *_PATHS)))


def nginx_command(folder: str | Path) -> tuple[str, ...]:
    """Write nginx's configuration into a server's folder; return the command that runs it in the foreground."""
    config = load_server(folder)
    program = find_nginx()
    if program is None:
        raise UsageError("nginx is not installed; the server needs it as its proxy: apt-get install nginx-light")
    (config.folder / WORKING).mkdir(mode=0o750, exist_ok=True)
    (config.folder / CONFIGURATION).write_text(nginx_text(config))
    return (program, "-p", str(config.folder), "-c", CONFIGURATION)
