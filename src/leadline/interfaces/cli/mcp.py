"""``leadline mcp``: serve the tools to any assistant."""

from importlib.util import find_spec
from pathlib import Path

import click

from leadline.core.errors import MissingExtra
from leadline.interfaces.cli.command import FILE, command, flag, option
from leadline.interfaces.cli.output import print_note
from leadline.interfaces.cli.web import PACKAGES

PORT = 8643


@command("mcp")
@flag("--http", "Serve streamable HTTP at /mcp instead of standard input and output.")
@option("--port", "N", "TCP port of --http; 0 for any free one.", type=click.IntRange(0, 65535), default=PORT)
@option(
    "--token-file", "FILE", "File with the token that requests of --http must show.", "web-token in the data folder",
    type=FILE,
)  # fmt: skip
@flag("--allow-submit", "Offer submit, cancel and approve, too; each call asks you.")
@flag("--allow-scripts", "Estimate scripts of this folder, which are traced in the sandbox.")
def mcp(*, http: bool, port: int, token_file: Path | None, allow_submit: bool, allow_scripts: bool) -> None:
    """Serve the tools to an assistant that speaks the Model Context Protocol; workloads are files of this folder.

    An assistant starts it by itself: name the command leadline mcp in its settings. It changes nothing unless you allow
    it to submit. Then it asks you before each change, through the assistant's own dialog.
    """
    if any(find_spec(package) is None for package in ("mcp", *PACKAGES)):
        raise MissingExtra("leadline mcp", "mcp")
    from leadline.interfaces import mcp_server  # noqa: PLC0415 - an optional extra
    from leadline.interfaces.web.server import read_token, serve  # noqa: PLC0415
    from leadline.interfaces.web.settings import WebSettings  # noqa: PLC0415

    token = read_token(token_file) if http else ""
    settings = WebSettings(token, Path.cwd(), allow_submit=allow_submit, allow_scripts=allow_scripts)
    if not http:
        mcp_server.run_on_stdio(settings)
        return
    serve(
        settings, "127.0.0.1", port, lambda address: print_note(f"the tools are at {address}mcp"), mcp_server.http_app
    )  # fmt: skip
