"""The chat panel of the page: a conversation for each browser window, answered part by part."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from leadline.app.composition import user_catalog
from leadline.interfaces.chat.conversation import Conversation, without_marks
from leadline.interfaces.chat.run_command import CommandRunner
from leadline.interfaces.web.pages import Pages
from leadline.interfaces.web.settings import WebSettings

LONGEST = 2000
"""Characters of a question."""


def chat_routes(settings: WebSettings, pages: Pages) -> APIRouter:
    """Return the routes of the chat."""
    router, busy = APIRouter(include_in_schema=False), asyncio.Lock()
    conversation = Conversation(
        {name: tool for name, tool in pages.tools.items() if not tool.acts},
        [system.name for system in user_catalog().systems()],
        CommandRunner(settings.folder, scripts=settings.allow_scripts), _never,
    )  # fmt: skip

    @router.get("/chat")
    async def chat_page(request: Request) -> Response:
        who = (
            "A grammar reads your questions, no language model. "
            "It changes nothing: submit and cancel with leadline chat."
        )
        return pages.show("chat.html", request, who=who)

    @router.post("/chat/ask")
    async def ask(request: Request) -> Response:
        question = await _question(request)

        async def parts() -> AsyncIterator[str]:
            async with busy:
                answer = conversation.ask(question)
                while (part := await asyncio.to_thread(next, answer, None)) is not None:
                    yield json.dumps({"kind": part.kind, "text": without_marks(part.text)}) + "\n"

        return StreamingResponse(parts(), media_type="application/x-ndjson")

    return router


async def _question(request: Request) -> str:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the body is not JSON") from error
    question = body.get("question") if isinstance(body, dict) else None
    if not isinstance(question, str) or not 0 < len(question.strip()) <= LONGEST:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"question must be text of 1 to {LONGEST} characters")
    return question


def _never(_: str, __: Mapping[str, Any]) -> bool:
    """Nobody agrees: the page of the chat changes nothing."""
    return False
