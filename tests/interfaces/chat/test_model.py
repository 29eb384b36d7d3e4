"""The client of Ollama against a server that speaks its protocol, with scripted replies; no model runs here."""

import json
from threading import Event

import pytest

pytest.importorskip("ollama", reason="needs the [chat] extra")
pytest.importorskip("pytest_httpserver", reason="needs pytest-httpserver")

from werkzeug import Response

from leadline.core.errors import MissingExtra
from leadline.interfaces.chat import reach
from leadline.interfaces.chat.context import count_tokens
from leadline.interfaces.chat.model import (
    ANSWER_TOKENS,
    CONTEXT_TOKENS,
    LEAST_TOKENS,
    SYSTEM_MESSAGE,
    ModelCall,
    ModelUnavailable,
    OllamaModel,
)
from leadline.interfaces.chat.reach import reach_model
from leadline.interfaces.tools import tools
from tests.interfaces.chat.conftest import call


def test_words_and_calls_are_streamed_and_the_tools_are_sent_with_enough_context(ollama, tmp_path):
    model = ollama.says(["One ", "moment.", call("devices", {"name": "T4"})])
    pieces = list(model.stream([{"role": "user", "content": "T4?"}], list(tools(tmp_path).values())))
    assert pieces == ["One ", "moment.", ModelCall("devices", {"name": "T4"})]
    (request,) = ollama.requests
    assert request["options"]["num_ctx"] == CONTEXT_TOKENS
    assert request["options"]["num_predict"] == ANSWER_TOKENS
    described = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request["tools"]}
    assert described["estimate"]["required"] == ["workload"]
    assert described["estimate"]["properties"]["batch"]["type"] == "integer"


def test_words_come_while_the_model_still_writes(httpserver):
    is_read = Event()

    def lines(_):
        yield '{"message": {"role": "assistant", "content": "One "}, "done": false}\n'
        assert is_read.wait(30)
        yield '{"message": {"role": "assistant", "content": "moment."}, "done": true, "done_reason": "stop"}\n'

    httpserver.expect_request("/api/chat").respond_with_handler(lambda request: Response(lines(request)))
    pieces = OllamaModel("m", httpserver.url_for("")).stream([], [])
    assert next(pieces) == "One "
    is_read.set()
    assert list(pieces) == ["moment."]


def test_the_tools_leave_room_for_a_question_with_its_result_in_the_shortest_context(ollama, tmp_path):
    ollama.context_length = LEAST_TOKENS
    model = ollama.says()
    left = model.message_tokens(list(tools(tmp_path).values())) - count_tokens(SYSTEM_MESSAGE)
    assert left > 1000
    list(model.stream([], []))
    assert ollama.requests[0]["options"]["num_ctx"] == LEAST_TOKENS


@pytest.mark.parametrize(
    ("attribute", "value", "why"),
    [("capabilities", ["completion"], "calls no tools: name another with --model"),
     ("context_length", 4096, "reads 4,096 tokens, and the tools need .*: name another with --model")],
)  # fmt: skip
def test_a_model_that_cannot_do_it_is_refused_with_the_fix(ollama, attribute, value, why):
    setattr(ollama, attribute, value)
    with pytest.raises(ModelUnavailable, match=why):
        ollama.says()


@pytest.mark.parametrize(
    ("status", "why"), [(404, r"has no model m: type ollama pull m"), (500, "is out of order .*: broken|out of order")]
)
def test_a_server_that_refuses_says_how_to_go_on(httpserver, status, why):
    httpserver.expect_request("/api/show").respond_with_json({"error": "broken"}, status=status)
    with pytest.raises(ModelUnavailable, match=why):
        OllamaModel("m", httpserver.url_for("")).check()


@pytest.mark.parametrize("host", ["http://localhost:port", "http://[::1"])
def test_an_address_that_cannot_be_read_is_one_sentence(host, monkeypatch):
    with pytest.raises(ModelUnavailable, match="is no address of Ollama"):
        OllamaModel("m", host)
    monkeypatch.setenv("OLLAMA_HOST", host)
    model, why = reach_model()
    assert model is None
    assert "is no address of Ollama" in why


def test_no_server_is_one_sentence():
    with pytest.raises(ModelUnavailable, match=r"no Ollama answers at http://127.0.0.1:9: start it"):
        OllamaModel("m", "http://127.0.0.1:9").check()


def test_a_named_server_or_model_that_cannot_be_used_is_an_error_and_no_silent_grammar(ollama, monkeypatch):
    with pytest.raises(ModelUnavailable, match="no Ollama answers"):
        reach_model(host="http://127.0.0.1:9")
    monkeypatch.setattr(reach, "find_spec", lambda _: None)
    assert reach_model()[0] is None
    with pytest.raises(MissingExtra, match=r"pip install 'leadline\[chat\]'"):
        reach_model("m")


def test_model_and_host_come_from_the_call_or_the_settings(ollama, monkeypatch):
    assert reach_model("named", ollama.host)[1] == f"named on {ollama.host}"
    monkeypatch.setenv("OLLAMA_HOST", ollama.host)
    monkeypatch.setenv("LEADLINE_CHAT_MODEL", "set")
    assert reach_model()[1] == f"set on {ollama.host}"


def test_an_answer_that_breaks_off_is_one_sentence(httpserver):
    httpserver.expect_request("/api/chat").respond_with_json({"error": "out of memory"}, status=500)
    with pytest.raises(ModelUnavailable, match="ended the answer"):
        list(OllamaModel("m", httpserver.url_for("")).stream([], []))


def test_an_answer_that_is_too_long_says_so_after_its_words(ollama):
    ollama.done_reason = "length"
    pieces = ollama.says(["on and on"]).stream([], [])
    assert next(pieces) == "on and on"
    with pytest.raises(ModelUnavailable, match="cut after 3,072 tokens"):
        next(pieces)


@pytest.mark.parametrize("arguments", [["T4"], "T4", 3, None])
def test_a_call_without_named_arguments_ends_the_answer_in_one_sentence(ollama, arguments):
    with pytest.raises(ModelUnavailable, match="ended the answer") as raised:
        list(ollama.says([call("devices", arguments)]).stream([], []))
    assert json.dumps(str(raised.value)).count(r"\n") == 0
