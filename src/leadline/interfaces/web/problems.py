"""Errors as problem documents (RFC 9457)."""

from collections.abc import Callable
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from leadline.core.errors import JobFailed, LeadlineError, SchedulerUnreachable, UnknownName

MEDIA_TYPE = "application/problem+json"
PROBLEM_SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "status": {"type": "integer"}, "detail": {"type": "string"}},
    "required": ["title", "status", "detail"],
}

FAULT = "a fault of Leadline's own; the server's log has the details"


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return a problem document."""
    content = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(content, status, headers, MEDIA_TYPE)


def status_of(error: LeadlineError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, UnknownName):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, SchedulerUnreachable):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.CONFLICT if isinstance(error, JobFailed) else HTTPStatus.UNPROCESSABLE_ENTITY


def handle_errors(app: FastAPI, page: Callable[[Request, int, str], Response]) -> None:
    """Answer every error with a problem document; that of a bug is general, and the server logs the bug itself.

    Args:
        app: The application.
        page: Returns a page about an error, for a person who opened its address in a browser.
    """

    def answer(request: Request, status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
        by_script = request.method != "GET" or "hx-request" in request.headers
        if not by_script and "text/html" in request.headers.get("accept", ""):
            return page(request, status, detail)
        return problem(status, detail, headers)

    @app.exception_handler(LeadlineError)
    def of_leadline(request: Request, error: LeadlineError) -> Response:
        return answer(request, status_of(error), str(error))

    @app.exception_handler(HTTPException)
    def of_http(request: Request, error: HTTPException) -> Response:
        unknown = error.status_code == HTTPStatus.NOT_FOUND and error.detail == HTTPStatus.NOT_FOUND.phrase
        detail = f"unknown address {request.url.path!r}" if unknown else str(error.detail)
        return answer(request, error.status_code, detail, dict(error.headers or {}))

    @app.exception_handler(ClientDisconnect)
    def of_the_client(_: Request, __: ClientDisconnect) -> Response:
        return problem(HTTPStatus.BAD_REQUEST, "the connection ended before the body did")  # nobody reads it

    @app.exception_handler(Exception)
    def of_a_bug(request: Request, __: Exception) -> Response:
        return answer(request, HTTPStatus.INTERNAL_SERVER_ERROR, FAULT)
