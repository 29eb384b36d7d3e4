"""The chat panel of the page: a conversation for each browser window, answered part by part."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from http import HTTPStatus

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from leadline.app.composition import user_catalog
from leadline.interfaces.chat.conversation import Conversation, without_marks
from leadline.interfaces.chat.grammar import LONGEST
from leadline.interfaces.chat.reach import reach_model, system_message
from leadline.interfaces.chat.run_command import CommandRunner
from leadline.interfaces.web.pages import Pages
from leadline.interfaces.web.settings import WebSettings

LONGEST_ID = 64
MOST_CONVERSATIONS = 32
"""Conversations that are kept; the one whose last question is the oldest goes first."""


class Conversations:
    """The conversations of the browser windows by their ids, each with a lock for one question at a time."""

    def __init__(self, settings: WebSettings, pages: Pages) -> None:
        self._settings = settings
        self._tools = {name: tool for name, tool in pages.tools.items() if not tool.acts}
        self._kept: OrderedDict[str, tuple[Conversation, asyncio.Lock]] = OrderedDict()

    async def of(self, window: str) -> tuple[Conversation, asyncio.Lock]:
        """Return the conversation of a window, a new one at first."""
        if window not in self._kept:
            begun = (await asyncio.to_thread(self._begin), asyncio.Lock())
            self._kept.setdefault(window, begun)  # another question of the window may have begun one meanwhile
        self._kept.move_to_end(window)
        while len(self._kept) > MOST_CONVERSATIONS:
            self._kept.popitem(last=False)
        return self._kept[window]

    def to_markdown(self, window: str) -> str | None:
        """Return a conversation as a document; None if there is none."""
        kept = self._kept.get(window)
        return kept[0].to_markdown() if kept else None

    def _begin(self) -> Conversation:
        model, _ = reach_model()
        return Conversation(
            self._tools, [system.name for system in user_catalog().systems()],
            CommandRunner(self._settings.folder, scripts=self._settings.allow_scripts), lambda *_: False, model,
            system_message() if model else "",
        )  # fmt: skip


def chat_routes(settings: WebSettings, pages: Pages) -> APIRouter:
    """Return the routes of the chat."""
    router, conversations = APIRouter(include_in_schema=False), Conversations(settings, pages)

    @router.get("/chat")
    async def chat_page(request: Request) -> Response:
        model, where = await asyncio.to_thread(reach_model)
        reads = f"{where} reads your questions" if model else f"A grammar reads your questions: {where}"
        who = f"{reads}. This page changes nothing: to submit and cancel, use leadline chat in a terminal."
        return pages.show("chat.html", request, who=who)

    @router.post("/chat/ask")
    async def ask(request: Request) -> Response:
        question, window = await _question(request)
        conversation, busy = await conversations.of(window)

        async def parts() -> AsyncIterator[str]:
            async with busy:
                answer = conversation.ask(question)
                while (part := await asyncio.to_thread(next, answer, None)) is not None:
                    yield json.dumps({"kind": part.kind, "text": without_marks(part.text)}) + "\n"

        return StreamingResponse(parts(), media_type="application/x-ndjson")

    @router.get("/chat/{window}.md")
    async def save(window: str) -> Response:
        text = conversations.to_markdown(window)
        if text is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "this conversation is not kept any more")
        named = {"Content-Disposition": 'attachment; filename="conversation.md"'}
        return PlainTextResponse(text, media_type="text/markdown", headers=named)

    return router


async def _question(request: Request) -> tuple[str, str]:
    """Return the question and the id of its window."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the body is not JSON") from error
    question, window = (body.get("question"), body.get("window", "")) if isinstance(body, dict) else (None, "")
    if not isinstance(question, str) or not 0 < len(question.strip()) <= LONGEST:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"question must be text of 1 to {LONGEST} characters")
    if not isinstance(window, str) or len(window) > LONGEST_ID:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"window must be text of at most {LONGEST_ID} characters")
    return question, window
