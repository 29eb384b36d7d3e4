"""``leadline web``: serve the REST API and the page."""

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlencode

import click

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.interfaces.cli.command import FILE, command, flag, option
from leadline.interfaces.cli.output import print_note

PORT, UPLOAD_LIMIT_MIB = 8642, 512
PACKAGES = ("fastapi", "uvicorn", "sse_starlette", "jinja2")
"""Packages of the [web] extra that the server needs."""


@command("web")
@option("--port", "N", "TCP port; 0 for any free one.", type=click.IntRange(0, 65535), default=PORT)
@option("--host", "ADDRESS", "Address to listen on; other machines reach 0.0.0.0.", default="127.0.0.1")
@option("--root-path", "PATH", "Path under which a proxy serves it, such as /node/n1/8642.", default="")
@option(
    "--allow-host", "NAME", "Name under which a proxy serves it; repeatable.", "this machine's names", multiple=True
)
@option(
    "--token-file", "FILE", "File with the token that requests must show.", "web-token in the data folder", type=FILE
)
@option(
    "--upload-limit-mib", "N", "Size of the largest file that may be uploaded, in MiB.", default=UPLOAD_LIMIT_MIB,
    type=click.IntRange(1, 2**20),
)  # fmt: skip
@flag("--no-token", "Ask for no token: every user of this machine may use it.")
@flag("--allow-submit", "Submit and cancel jobs, too.")
@flag("--allow-scripts", "Estimate scripts of this folder, which are traced in the sandbox.")
def web(
    *, port: int, host: str, root_path: str, allow_host: tuple[str, ...], token_file: Path | None,
    upload_limit_mib: int, no_token: bool, allow_submit: bool, allow_scripts: bool,
) -> None:  # fmt: skip
    """Serve the REST API on this machine, for yourself; workloads are files of this folder.

    Open the address that it prints: it has your token, which becomes a cookie. Ctrl-C ends the server; jobs go on.
    """
    if any(find_spec(package) is None for package in PACKAGES):
        raise MissingExtra("leadline web", "web")
    from leadline.interfaces.web.server import read_token, serve  # noqa: PLC0415 - an optional extra
    from leadline.interfaces.web.settings import WebSettings  # noqa: PLC0415 - loads with the server

    if root_path and not root_path.startswith("/"):
        raise InvalidInput(f"--root-path is {root_path!r}, but it must begin with /")
    defaults = WebSettings("", Path.cwd())
    settings = WebSettings(
        "" if no_token else read_token(token_file), Path.cwd(), (*defaults.hosts, *allow_host), root_path.rstrip("/"),
        allow_submit, allow_scripts, most_upload_bytes=upload_limit_mib * 2**20,
    )  # fmt: skip
    shown = f"?{urlencode({'token': settings.token})}" if settings.token else ""
    serve(settings, host, port, lambda address: print_note(f"Leadline is at {address}{shown}"))
