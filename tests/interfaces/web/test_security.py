"""Attacks on the web server, over real HTTP."""

import asyncio
import http.client
import stat

import httpx
import pytest

from leadline.core.errors import InvalidInput
from leadline.interfaces.web.security import COOKIE, Guard, cookie_name
from leadline.interfaces.web.server import read_token, serve
from leadline.interfaces.web.settings import WebSettings
from tests.interfaces.web.conftest import TOKEN, served

PATH = "/api/v1/systems"


@pytest.mark.parametrize(
    "given", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Cookie": f"{COOKIE}=no"}]
)
def test_without_the_token_nothing_is_answered(address, given):
    for path in (PATH, "/api/v1/openapi.json", "/", "/nothing"):
        assert httpx.get(address + path, headers=given).status_code == 401
    assert httpx.post(address + PATH, json={}, headers=given).status_code == 401


def test_the_address_with_the_token_leaves_a_cookie_and_loses_the_token(address):
    answer = httpx.get(f"{address}/?token={TOKEN}")
    assert answer.status_code == 303
    assert TOKEN not in answer.headers["location"]
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert httpx.get(f"{address}/?token=wrong").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"}, 403),
    ],
)
def test_a_page_of_another_site_changes_nothing_with_the_users_cookie(address, headers, status):
    cookie = {"Cookie": f"{cookie_name(address)}={TOKEN}"}
    assert httpx.post(address + PATH, json={}, headers={**cookie, **headers}).status_code == status


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil.example", "[", "[x]"])
def test_another_name_for_this_machine_is_refused(client, host):
    assert client.post(PATH, json={}, headers={"Host": host}).status_code in (400, 421)


def test_the_name_of_this_machine_counts_in_any_case(web_folder):
    with served(WebSettings(TOKEN, web_folder, ("Node1.Example",))) as address:
        headers = {"Host": "node1.EXAMPLE", "Authorization": f"Bearer {TOKEN}"}
        assert httpx.post(address + PATH, json={}, headers=headers).status_code == 200


def test_servers_on_two_ports_have_a_cookie_each(web_folder):
    other_token = TOKEN[::-1]
    with (
        served(WebSettings(TOKEN, web_folder)) as address,
        served(WebSettings(other_token, web_folder)) as other,
        httpx.Client() as browser,
    ):
        browser.get(f"{address}/?token={TOKEN}")
        browser.get(f"{other}/?token={other_token}")
        assert browser.post(address + PATH, json={}).status_code == 200
        assert browser.post(other + PATH, json={}).status_code == 200


def test_a_body_that_is_too_long_is_refused_with_and_without_its_length(client):
    long = b'{"name": "' + b"x" * 3 * 2**20 + b'"}'
    kind = {"Content-Type": "application/json"}
    assert client.post(PATH, content=long, headers=kind).status_code == 413
    pieces = (long[at : at + 65536] for at in range(0, len(long), 65536))
    assert client.post(PATH, content=pieces, headers=kind).status_code == 413


def test_more_requests_than_allowed_wait(web_folder):
    with served(WebSettings(TOKEN, web_folder, requests_per_minute=5)) as address:
        answers = [httpx.get(address, headers={"Authorization": f"Bearer {TOKEN}"}) for _ in range(8)]
    assert answers[-1].status_code == 429
    assert answers[-1].headers["Retry-After"] == "1"


def test_requests_without_the_token_take_nothing_of_what_its_user_may_ask(web_folder):
    with served(WebSettings(TOKEN, web_folder, requests_per_minute=5)) as address:
        assert {httpx.get(address).status_code for _ in range(8)} == {401}
        assert httpx.get(address, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_every_answer_forbids_foreign_scripts_frames_and_sniffing(client):
    for answer in (client.post(PATH, json={}), client.get("/nothing"), httpx.get(str(client.base_url))):
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_fault_tells_nothing_of_the_inside(web_folder, monkeypatch):
    from leadline.interfaces import tools

    def broken(self, arguments):
        raise RuntimeError("a path of the inside")

    monkeypatch.setattr(tools.Tool, "call", broken)
    with served(WebSettings(TOKEN, web_folder)) as address:
        answer = httpx.post(address + PATH, json={}, headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 500
    assert "inside" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../pages.py", "/static/%2e%2e/pages.py", "/static/..%2fpages.py", "/static//etc/passwd",
        "/static/%2fetc%2fpasswd", "/static/..%5cpages.py", "/static/style.css%00", "/%00", "/chat/..%2f..%2fx.md",
        "/api/v1/../../etc/passwd", "//etc/passwd", "/systems/..%2f..%2f..%2fetc%2fpasswd",
        "/jobs/..%2f..%2fweb-token", "/api/v1/tasks/..%2f..%2fweb-token",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_application(address, path):
    # A client of the library would resolve the dots itself.
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert answer.status in (400, 404), answer.read()
    assert b"root:" not in answer.read()
    connection.close()


@pytest.mark.parametrize("workload", ["/etc/passwd", "../secret.json", "link.json", "config.json/../../secret.json"])
def test_no_workload_is_read_outside_the_folder(client, web_folder, workload):
    (web_folder.parent / "secret.json").write_text('{"model_type": "llama"}')
    (web_folder / "link.json").unlink(missing_ok=True)
    (web_folder / "link.json").symlink_to(web_folder.parent / "secret.json")
    for path in ("estimate", "fit", "recommend"):
        answer = client.post(f"/api/v1/{path}", json={"workload": workload, "on": ["T4"]})
        assert answer.status_code == 422
        assert "outside" in answer.json()["detail"]


def test_a_web_socket_is_refused_before_the_application_sees_it(web_folder):
    sent = []

    async def application(scope, receive, send):
        raise AssertionError("it was reached")

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/static/x", "headers": []}
    asyncio.run(Guard(application, WebSettings(TOKEN, web_folder))(scope, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


PREFIX = "/node/n1/8642"


@pytest.mark.parametrize("cut", [False, True], ids=["path kept", "path cut"])
def test_behind_a_path_every_redirect_and_location_is_relative(web_folder, cut):
    shown = "" if cut else PREFIX  # Open OnDemand keeps the path under /node and cuts it under /rnode
    with served(WebSettings(TOKEN, web_folder, root_path=PREFIX)) as address, httpx.Client() as browser:
        opened = browser.get(f"{address}{shown}/?token={TOKEN}")
        assert opened.headers["location"] == "./"
        assert f"Path={PREFIX}" in opened.headers["set-cookie"]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for page in ("", "jobs", "systems", "chat"):
            assert browser.get(f"{address}{shown}/{page}", headers=headers).status_code == 200
        started = browser.post(f"{address}{shown}/api/v1/tasks/jobs", json={}, headers=headers)
        task = started.request.url.join(started.headers["location"])
        assert browser.get(task, headers=headers).status_code == 200
        document = browser.get(f"{address}{shown}/api/v1/openapi.json", headers=headers).json()
        assert document["servers"] == [{"url": PREFIX}]


def test_the_path_of_the_proxy_without_its_slash_leads_to_the_page(web_folder):
    with served(WebSettings(TOKEN, web_folder, root_path=PREFIX)) as address:
        answer = httpx.get(f"{address}{PREFIX}?token={TOKEN}")
        assert (answer.status_code, answer.headers["location"]) == (307, f"8642/?token={TOKEN}")
        assert httpx.get(f"{address}{PREFIX}").headers["location"] == "8642/"


@pytest.mark.parametrize("length", ["x", "-1", "٣", "1e9"])
def test_a_length_that_is_no_number_is_no_fault(web_folder, length):
    sent = []

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/", "query_string": b"", "scheme": "http",
        "headers": [(b"host", b"localhost"), (b"content-length", length.encode())],
    }  # fmt: skip
    asyncio.run(Guard(application, WebSettings("", web_folder))(scope, None, send))
    assert sent[0]["status"] == 200


def test_a_server_without_a_token_ignores_one_in_an_address(web_folder):
    with served(WebSettings("", web_folder)) as address:
        assert httpx.get(f"{address}/?token=old").status_code == 200


def test_a_server_without_a_token_listens_on_this_machine_only(web_folder):
    for host in ("0.0.0.0", "::", "192.0.2.1"):  # noqa: S104 - refused
        with pytest.raises(InvalidInput, match="on this machine only"):
            serve(WebSettings("", web_folder), host, 0, print)


def test_a_token_file_is_its_owners_alone(tmp_path):
    file = tmp_path / "folder" / "token"
    token = read_token(file)
    assert len(token) >= 32
    assert read_token(file) == token
    file.chmod(0o644)
    read_token(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("short\n")
    with pytest.raises(InvalidInput, match="16 or more"):
        read_token(file)
