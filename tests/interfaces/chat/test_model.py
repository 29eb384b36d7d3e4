"""The client of Ollama against a server that speaks its protocol, with scripted replies; no model runs here."""

import json

import pytest

pytest.importorskip("ollama", reason="needs the [chat] extra")
pytest.importorskip("pytest_httpserver", reason="needs pytest-httpserver")

from werkzeug import Response

from leadline.interfaces.chat.model import CONTEXT_TOKENS, ModelCall, ModelUnavailable, OllamaModel
from leadline.interfaces.chat.reach import reach_model
from leadline.interfaces.tools import tools


def replies(httpserver, *parts, capabilities=("completion", "tools")):
    """Let the server answer a chat with these messages, one a line, and return the requests that it got."""
    requests = []

    def chat(request):
        requests.append(request.get_json())
        lines = [{"model": "m", "message": {"role": "assistant", **part}, "done": False} for part in parts]
        return Response("".join(json.dumps(line) + "\n" for line in lines), content_type="application/x-ndjson")

    httpserver.expect_request("/api/show").respond_with_json({"capabilities": list(capabilities), "model_info": {}})
    httpserver.expect_request("/api/chat").respond_with_handler(chat)
    return requests


def call(name, /, **arguments):
    return {"content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def test_words_and_calls_are_streamed_and_the_tools_are_sent_with_enough_context(httpserver, tmp_path):
    requests = replies(httpserver, {"content": "One "}, {"content": "moment."}, call("devices", name="T4"))
    model = OllamaModel("m", httpserver.url_for(""))
    model.check()
    pieces = list(model.stream([{"role": "user", "content": "T4?"}], list(tools(tmp_path).values())))
    assert pieces == ["One ", "moment.", ModelCall("devices", {"name": "T4"})]
    (request,) = requests
    assert request["options"]["num_ctx"] == CONTEXT_TOKENS
    described = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request["tools"]}
    assert described["estimate"]["required"] == ["workload"]
    assert described["estimate"]["properties"]["batch"]["type"] == "integer"


def test_a_model_that_calls_no_tools_is_refused(httpserver):
    replies(httpserver, capabilities=("completion",))
    with pytest.raises(ModelUnavailable, match="calls no tools"):
        OllamaModel("m", httpserver.url_for("")).check()


def test_a_missing_model_says_how_to_get_it(httpserver):
    httpserver.expect_request("/api/show").respond_with_json({"error": "model 'm' not found"}, status=404)
    with pytest.raises(ModelUnavailable, match="ollama pull m"):
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
    with pytest.raises(ModelUnavailable, match=r"no Ollama answers at http://127.0.0.1:9"):
        OllamaModel("m", "http://127.0.0.1:9").check()


def test_an_answer_that_breaks_off_is_one_sentence(httpserver):
    httpserver.expect_request("/api/chat").respond_with_json({"error": "out of memory"}, status=500)
    with pytest.raises(ModelUnavailable, match="ended the answer"):
        list(OllamaModel("m", httpserver.url_for("")).stream([], []))
