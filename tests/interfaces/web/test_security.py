"""Attacks on the web server, over real HTTP."""

import httpx
import pytest

from leadline.interfaces.web.security import COOKIE, cookie_name
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
