"""The chat of the page: a conversation for each window, which changes nothing and can be saved."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def ask(client, question, window="w1"):
    answer = client.post("/chat/ask", json={"question": question, "window": window})
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


def test_an_answer_has_its_command_and_can_be_saved(client):
    parts = ask(client, "how much memory does an MI250X have?")
    assert [part["kind"] for part in parts] == ["call", "result"]
    assert parts[0]["text"] == "leadline devices show MI250X"
    saved = client.get("/chat/w1.md")
    assert saved.headers["content-type"].startswith("text/markdown")
    assert "## how much memory does an MI250X have?" in saved.text
    assert parts[1]["text"].splitlines()[0] in saved.text


def test_windows_do_not_hear_each_other(client):
    ask(client, "how much memory does an H100 have?", "one")
    (note,) = ask(client, "and twice as many?", "two")
    assert note["kind"] == "note"
    assert ask(client, "and the MI300X?", "one")[0]["text"].endswith("MI300X")
    assert client.get("/chat/three.md").status_code == 404


def test_two_first_questions_of_a_window_share_its_conversation(web_folder):
    from leadline.interfaces.web.chat_routes import Conversations
    from leadline.interfaces.web.pages import Pages
    from leadline.interfaces.web.settings import WebSettings
    from leadline.interfaces.web.tasks import TaskPool

    settings = WebSettings("", web_folder)
    conversations = Conversations(settings, Pages(settings, TaskPool(settings)))

    async def ask_twice():
        return await asyncio.gather(conversations.of("w"), conversations.of("w"))

    first, second = asyncio.run(ask_twice())
    assert first is second


@pytest.mark.parametrize("question", ["cancel all my jobs", "submit python train.py on local"])
def test_it_changes_nothing(client, question):
    (note,) = ask(client, question, "acts")
    assert note["kind"] == "note"
    assert "not allowed here" in note["text"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"question": ""}, 422), ({"question": "x" * 2001}, 422), ({"question": 3}, 422), ([], 422),
        ({"question": "x", "window": "w" * 65}, 422), ({"question": "x", "window": 1}, 422),
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(client, body, status):
    assert client.post("/chat/ask", json=body).status_code == status


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(body=st.binary(max_size=200) | st.text(alphabet='{}[]":,\\ue0', max_size=60).map(str.encode))
def test_a_body_of_any_bytes_is_refused_in_order(client, body):
    answer = client.post("/chat/ask", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 422)
