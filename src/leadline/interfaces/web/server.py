"""Run the web server of one user: its token, its address and its end."""

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from leadline.app import settings as folders
from leadline.core.errors import InvalidInput
from leadline.files.private import make_private_folder, open_private, tighten
from leadline.interfaces.web.app import create_app
from leadline.interfaces.web.settings import WebSettings

LOOPBACK = ("127.0.0.1", "localhost", "::1")
GRACE_S = 2
"""Seconds that open connections have when the server ends."""
MOST_CONNECTIONS = 1000
"""Connections at a time; more are refused with status 503."""


def read_token(file: Path | None) -> str:
    """Return the token in a file, by default of the data folder; a missing file gets a new one.

    Only its owner may read it afterwards.

    Raises:
        InvalidInput: the file cannot be used, or its token is shorter than 16 characters.
    """
    path = file or folders.data_dir() / "web-token"
    try:
        make_private_folder(path.parent)
        with suppress(FileExistsError), open(path, "x", opener=open_private, encoding="ascii") as stream:
            stream.write(secrets.token_urlsafe(24) + "\n")
        tighten(path)
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the token file {path} cannot be used: {error}") from error
    if len(token) < 16:
        raise InvalidInput(f"the token in {path} has {len(token)} characters: write 16 or more, or remove the file")
    return token


def serve(
    settings: WebSettings,
    host: str,
    port: int,
    announce: Callable[[str], None],
    make: Callable[[WebSettings], ASGIApp] = create_app,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        settings: Settings; the host's name is added to ``hosts``.
        host: Address to listen on.
        port: TCP port; 0 for any free one.
        announce: Called with the address, once the server listens.
        make: Makes the application.

    Raises:
        InvalidInput: no token for an address that others reach, or the port cannot be used.
    """
    if host not in LOOPBACK and not settings.token:
        raise InvalidInput(f"without a token the server listens on this machine only, and not on {host}")
    with _listening(host, port) as listener:
        bound = listener.getsockname()[1]
        names = tuple(dict.fromkeys((*settings.hosts, host, socket.gethostname(), socket.getfqdn())))
        shown = "localhost" if host in (*LOOPBACK, "0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
        announce(f"http://{shown}:{bound}{settings.root_path}/")
        app = make(replace(settings, hosts=names))
        # The log would hold the token of the first request.
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S,
                                server_header=False, ws="none", limit_concurrency=MOST_CONNECTIONS)  # fmt: skip
        uvicorn.Server(config).run([listener])


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        InvalidInput: the address is unknown, taken, or not allowed.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:  # a name's part may be empty or too long
        raise InvalidInput(f"cannot listen on {host} port {port} ({error}): choose another with --port") from error
