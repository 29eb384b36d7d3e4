"""The web application."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from leadline import __version__
from leadline.app.composition import keep_catalog_live
from leadline.interfaces.tools import tools
from leadline.interfaces.web import openapi
from leadline.interfaces.web.api import BASE, tool_routes
from leadline.interfaces.web.chat_routes import chat_routes
from leadline.interfaces.web.pages import Pages, page_routes
from leadline.interfaces.web.pipeline_routes import pipeline_routes
from leadline.interfaces.web.problems import handle_errors
from leadline.interfaces.web.security import Guard
from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.tasks import TaskPool
from leadline.interfaces.web.uploads import Uploads

_log = logging.getLogger(__name__)


def create_app(settings: WebSettings) -> ASGIApp:
    """Return the web application, with what guards it."""
    pool, uploads = TaskPool(settings), Uploads(settings.most_upload_bytes, scripts=settings.allow_scripts)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        keep_catalog_live(_log.warning)  # a probe or a calibration may add to it at any time
        yield
        await pool.close()
        uploads.close()

    app = FastAPI(
        title="Leadline", version=__version__, docs_url=None, redoc_url=None,
        openapi_url=f"{BASE}/openapi.json", lifespan=lifespan,
        redirect_slashes=False,  # a redirect has an absolute address, which is wrong behind a proxy
    )  # fmt: skip
    pages = Pages(settings, pool)
    handle_errors(app, pages.problem)
    app.include_router(tool_routes(settings, pool, uploads))
    app.include_router(page_routes(pages))
    app.include_router(pipeline_routes(settings, pages))
    app.include_router(chat_routes(settings, pages))
    described = app.openapi

    @cache
    def document() -> dict[str, Any]:
        """Return the OpenAPI document with the schemas of the tools' documents."""
        whole = described()
        shared = whole.setdefault("components", {})
        shared.setdefault("schemas", {}).update(openapi.components(tools(settings.folder).values()))
        shared["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        return {**whole, "security": [{"token": []}]}

    app.openapi = document  # type: ignore[method-assign]
    app.add_middleware(GZipMiddleware, minimum_size=1000)
    return Guard(app, settings)
