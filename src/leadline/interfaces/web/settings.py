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
        allow_submit: whether jobs may be submitted, cancelled and approved.
        allow_scripts: whether a script may be named as a workload, which is traced in the sandbox.
        most_bytes: size of the largest body, uploads apart.
        most_upload_bytes: size of the largest file that a client may upload.
        requests_per_minute: requests that are answered, on average; 200 open pages ask for 1,500.
        workers: verbs that run at once, and tasks.
        most_tasks: tasks that are kept, ended ones included.
        most_answer_bytes: size of the answers of ended tasks that are kept, the newest apart.
    """

    token: str
    folder: Path
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    root_path: str = ""
    allow_submit: bool = False
    allow_scripts: bool = False
    most_bytes: int = 2 * 2**20
    most_upload_bytes: int = 512 * 2**20
    requests_per_minute: int = 6000
    workers: int = 4
    most_tasks: int = 100
    most_answer_bytes: int = 64 * 2**20
