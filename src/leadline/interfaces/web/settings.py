"""Settings of the web server."""

from pathlib import Path

from leadline.core.frozen import Frozen


class WebSettings(Frozen):
    """Settings of the web server, which serves one user.

    Attributes:
        token: secret that every request must show; empty to ask for none, which only a loopback address allows.
        folder: folder whose files may be named as workloads.
        hosts: names that a request's Host may have, without the port.
        root_path: path under which a proxy serves it, such as ``/node/n1/8080``.
        most_bytes: size of the largest body.
        requests_per_minute: requests with one token, on average.
        workers: verbs that run at once.
        most_tasks: tasks that are kept, ended ones included.
    """

    token: str
    folder: Path
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    root_path: str = ""
    allow_submit: bool = False
    allow_scripts: bool = False
    most_bytes: int = 2 * 2**20
    requests_per_minute: int = 1200
    workers: int = 4
    most_tasks: int = 100
