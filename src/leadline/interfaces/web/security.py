"""What stands before every request: its host, its token, its origin, its rate and the size of its body."""

import hmac
import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leadline.core.units import parse_whole
from leadline.interfaces.web.problems import problem
from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.uploads import UPLOADS

COOKIE = "leadline-token"
WEBSOCKET_REFUSED = 1008
"""The code of a policy that is violated (RFC 6455, section 7.4.1)."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests that do not come from the user, or ask too much; wraps the whole application."""

    def __init__(self, app: ASGIApp, settings: WebSettings, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._settings = settings
        self._clock_s = clock_s
        self._left = float(settings.requests_per_minute)
        self._counted_s = clock_s()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        # The routes are the same with the proxy's path and without it.
        scope = {**scope, "root_path": self._settings.root_path}
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no sockets to open, and none would be checked
            await send({"type": "websocket.close", "code": WEBSOCKET_REFUSED})
            return

        answered = False

        async def send_guarded(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(Request(scope))
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        await self._app(scope, self._measured(receive, self._body_limit(scope), lambda: answered), send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that goes no further."""
        host = _host_name(request.headers.get("host", ""))
        if host not in {name.strip("[]").lower() for name in self._settings.hosts}:
            # Another site's name that points here would let its pages read answers (DNS rebinding).
            return problem(HTTPStatus.MISDIRECTED_REQUEST, f"Host is {host[:100]!r}, which this server does not serve")
        most_bytes, too_long = self._body_limit(request.scope)
        if (parse_whole(request.headers.get("content-length", "")) or 0) > most_bytes:
            return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_long)
        if (elsewhere := self._elsewhere(request)) is not None:
            return elsewhere
        token = request.query_params.get("token")
        if token is not None and self._settings.token and request.method == "GET":
            return self._signed_in(request, token)
        refusal = self._unsigned(request)
        if refusal is None and not self._has_room():  # a stranger's requests take none of the user's
            return problem(HTTPStatus.TOO_MANY_REQUESTS, "too many requests: wait a second", {"Retry-After": "1"})
        return refusal

    def _elsewhere(self, request: Request) -> Response | None:
        """Return the answer to a path that is none of the application's."""
        path: str = request.scope["path"]
        if "\0" in path:
            return problem(HTTPStatus.NOT_FOUND, "the path has a character that no file and no page has")
        if path and path == self._settings.root_path:  # the links of the page are relative, so that the slash matters
            address = f"{path.rpartition('/')[2]}/?{request.url.query}".rstrip("?")
            return RedirectResponse(address, HTTPStatus.TEMPORARY_REDIRECT)
        return None

    def _unsigned(self, request: Request) -> Response | None:
        """Return the refusal of a request without the token, or with its cookie from another site."""
        if not self._settings.token:
            return self._foreign(request.headers, request.method)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(token.strip()):
            return None
        if self._is_token(request.cookies.get(cookie_name(request.headers.get("host", "")), "")):
            return self._foreign(request.headers, request.method)
        return problem(
            HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: open the address that leadline web printed",
            {"WWW-Authenticate": "Bearer"},
        )  # fmt: skip

    def _foreign(self, headers: Headers, method: str) -> Response | None:
        """Return the refusal of a change that another site's page asks for, with a cookie or without a token."""
        if method in SAFE_METHODS:
            return None
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        same = origin is None or origin.partition("://")[2] == headers.get("host")
        if same and site in (None, "same-origin"):
            return None
        return problem(HTTPStatus.FORBIDDEN, "the request comes from a page of another site")

    def _signed_in(self, request: Request, token: str) -> Response:
        """Answer the address with the token: keep it as a cookie, and drop it from the address."""
        if not self._is_token(token):
            return problem(HTTPStatus.UNAUTHORIZED, "the token is wrong", {"WWW-Authenticate": "Bearer"})
        answer = RedirectResponse("./", HTTPStatus.SEE_OTHER)
        path = self._settings.root_path or "/"
        name = cookie_name(request.headers.get("host", ""))
        answer.set_cookie(name, token, path=path, httponly=True, samesite="strict")
        return answer

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._settings.token.encode())

    def _has_room(self) -> bool:
        """Take one from a bucket that fills with time; False if it is empty."""
        now_s, most = self._clock_s(), self._settings.requests_per_minute
        self._left = min(float(most), self._left + (now_s - self._counted_s) * most / 60)
        self._counted_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _body_limit(self, scope: Scope) -> tuple[int, str]:
        """Return the size of the largest body of a request, and why a larger one is refused."""
        path: str = scope["path"].removeprefix(self._settings.root_path)
        most_bytes, fix = self._settings.most_bytes, ""
        if scope["method"] == "PUT" and path.startswith(f"{UPLOADS}/"):
            most_bytes, fix = self._settings.most_upload_bytes, ": start the server with a larger --upload-limit-mib"
        return most_bytes, f"the body is longer than {most_bytes:,} bytes{fix}"

    def _measured(self, receive: Receive, limit: tuple[int, str], answered: Callable[[], bool]) -> Receive:
        """Return ``receive`` that ends a body that is too long, also one without a length.

        Once the answer has begun, it is too late to refuse, and nothing keeps the rest.
        """
        received, (most_bytes, too_long) = 0, limit

        async def receive_measured() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most_bytes and not answered():
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_long)
            return message

        return receive_measured


def cookie_name(host: str) -> str:
    """Return the name of the token's cookie at a host, with its port.

    Browsers send a cookie to every port of its host, and through tunnels many servers are at ``localhost``.
    """
    port = host.rpartition(":")[2]
    return f"{COOKIE}-{port}" if parse_whole(port) is not None else COOKIE


def _host_name(header: str) -> str:
    """Return the name in a Host header without its port, in lower case; empty if it is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:  # brackets without an address in them
        return ""
