"""A web server on a free port, with a token."""

import json
import secrets
import threading
from contextlib import contextmanager

import httpx
import pytest

from tests.interfaces.test_tools import LLAMA

uvicorn = pytest.importorskip("uvicorn", reason="needs the [web] extra")

TOKEN = secrets.token_hex(8)


@pytest.fixture(scope="module", autouse=True)
def own_folders(tmp_path_factory):
    """Keep the user's jobs, models and catalog out of the server, which answers in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("DATA", "CONFIG", "CACHE", "STATE"):
            patch.setenv(f"XDG_{kind}_HOME", str(tmp_path_factory.mktemp(kind.lower())))
        yield


@contextmanager
def served(settings):
    """Serve an application on a free port, and yield its address."""
    from leadline.interfaces.web.app import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(settings), port=0, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server ended before it began"
            thread.join(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def web_folder(tmp_path_factory, own_folders):
    folder = tmp_path_factory.mktemp("web")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


@pytest.fixture(scope="module")
def address(web_folder):
    from leadline.interfaces.web.settings import WebSettings

    with served(WebSettings(TOKEN, web_folder, requests_per_minute=10**6)) as address:
        yield address


@pytest.fixture
def client(address):
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
        yield client
