"""A server that speaks Ollama's protocol and answers with what a test wrote; no model runs here."""

import json

import pytest


def call(name, arguments):
    """Return the message of a model that calls a tool."""
    return {"content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


class ScriptedOllama:
    """Answers each chat request with the next round, words or messages one a line, and keeps the requests."""

    def __init__(self, httpserver):
        self.host = httpserver.url_for("")
        self.rounds, self.requests = [], []
        self.capabilities, self.context_length, self.done_reason = ["completion", "tools"], 131_072, "stop"
        httpserver.expect_request("/api/show").respond_with_handler(self._show)
        httpserver.expect_request("/api/chat").respond_with_handler(self._chat)

    def says(self, *rounds):
        """Answer with these rounds, then with a single word, and return a model that asks here."""
        from leadline.interfaces.chat.model import OllamaModel

        self.rounds = list(rounds)
        model = OllamaModel("m", self.host)
        model.check()
        return model

    @property
    def results(self):
        """The last results of tools that the model read."""
        return [message["content"] for message in self.requests[-1]["messages"] if message["role"] == "tool"]

    def _show(self, request):  # noqa: ARG002 - as the server calls it
        lengths = {"general.architecture": "llama", "llama.context_length": self.context_length}
        return _json([{"capabilities": self.capabilities, "model_info": lengths}])

    def _chat(self, request):
        self.requests.append(request.get_json())
        pieces = self.rounds.pop(0) if self.rounds else ["done"]
        messages = [{"content": piece} if isinstance(piece, str) else piece for piece in pieces]
        lines = [{"message": {"role": "assistant", **message}, "done": False} for message in messages]
        end = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": self.done_reason}
        return _json([{"model": "m", **line} for line in [*lines, end]])


def _json(lines):
    from werkzeug import Response

    return Response("".join(json.dumps(line) + "\n" for line in lines), content_type="application/x-ndjson")


@pytest.fixture
def ollama(request):
    """Serve scripted replies on a free port."""
    pytest.importorskip("ollama", reason="needs the [chat] extra")
    pytest.importorskip("pytest_httpserver", reason="needs pytest-httpserver")
    return ScriptedOllama(request.getfixturevalue("httpserver"))
