"""The pages: each shows documents of the tools as HTML, and works at any path of a proxy."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from leadline import __version__
from leadline.app.composition import user_catalog
from leadline.app.estimate.recommend import whole_node_cost
from leadline.app.machines.systems import last_change
from leadline.app.settings import catalog_dir
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.plane import NO_CONSENT, EventKind
from leadline.core.units import parse_duration_s, parse_whole
from leadline.interfaces.page_text import FILTERS, front_points, money
from leadline.interfaces.tools import Tool, tools
from leadline.interfaces.web.problems import status_of
from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.tasks import TaskPool

HERE = Path(__file__).parent
PAGES = (("", "Estimate"), ("jobs", "Jobs"), ("systems", "Systems"), ("campaigns", "Campaigns"), ("models", "Models"),
         ("history", "History"), ("chat", "Chat"))  # fmt: skip
ROWS = 40
"""Options of an answer that are shown."""
REJECTIONS = 100
NUMBERS = ("batch", "gpus", "samples", "epochs", "budget")
TEXTS = ("workload", "phase", "precision", "currency")
DECISIONS = (EventKind.DECISION, EventKind.APPROVE)

Document = dict[str, Any]


class Pages:
    """Renders the templates, and answers with them."""

    def __init__(self, settings: WebSettings, pool: TaskPool) -> None:
        self._settings = settings
        self._pool = pool
        self.may_act = settings.allow_submit
        self.tools: dict[str, Tool] = tools(settings.folder, scripts=settings.allow_scripts)
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= FILTERS

    async def ask(self, tool: str, arguments: Mapping[str, Any]) -> Document:
        """Return a tool's document."""
        return await self._pool.run(partial(self.tools[tool].call, arguments))

    def show(self, template: str, request: Request, **values: Any) -> HTMLResponse:  # noqa: ANN401
        """Return a page; its links are relative to its own address, so that any proxy may prefix them."""
        shared = {
            "base": _base(request), "pages": PAGES, "version": __version__,
            "page": _path(request).partition("/")[0], "may_act": self.may_act,
        }  # fmt: skip
        return HTMLResponse(self._templates.get_template(template).render({**shared, **values}))

    async def part(self, template: str, request: Request, values: "Values") -> HTMLResponse:
        """Return a part of a page, with the error in it if its tool refused."""
        try:
            return self.show(template, request, error="", **await values)
        except LeadlineError as error:
            return self.show(template, request, error=str(error))


Values = Any
"""A coroutine of a template's values."""


def page_routes(pages: Pages) -> APIRouter:
    """Return the routes of all pages; none of them is part of the REST API."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def estimate_page(request: Request) -> Response:
        """Show the form."""
        return pages.show("estimate.html", request, workload=request.query_params.get("workload", ""))

    @router.get("/estimate")
    async def estimate_part(request: Request) -> Response:
        """Answer the form."""
        return await pages.part("options.html", request, _options(pages, request))

    @router.get("/memory")
    async def memory_part(request: Request) -> Response:
        """Show the memory of one option."""
        return await pages.part("memory.html", request, _memory(pages, request))

    @router.get("/systems")
    async def systems_page(request: Request) -> Response:
        """Show the configuration database."""
        systems, devices = await pages.ask("systems", {}), await pages.ask("devices", {})
        return pages.show("systems.html", request, systems=systems["systems"], devices=devices["devices"])

    @router.get("/systems/{name}")
    async def system_page(request: Request, name: str) -> Response:
        """Show one system."""
        system = await _found(pages, "systems", {"name": name})
        change = last_change(system["name"], catalog_dir())
        return pages.show("system.html", request, system=system, change=change)

    @router.get("/campaigns")
    async def campaigns_page(request: Request) -> Response:
        """Show the campaigns."""
        campaigns = (await pages.ask("campaigns", {}))["campaigns"]
        return pages.show("campaigns.html", request, campaigns=campaigns)

    @router.get("/models")
    async def models_page(request: Request) -> Response:
        """Show the trained models with their cards."""
        return pages.show("models.html", request, models=(await pages.ask("models", {}))["models"])

    @router.get("/history")
    async def history_page(request: Request) -> Response:
        """Show past runs."""
        return pages.show("history.html", request, runs=(await pages.ask("history", {"limit": 100}))["runs"])

    _add_jobs(router, pages)
    router.mount("/static", _Kept(directory=HERE / "static"), name="static")
    return router


def _add_jobs(router: APIRouter, pages: Pages) -> None:
    """Add the pages about jobs."""

    @router.get("/jobs")
    async def jobs_page(request: Request) -> Response:
        return await pages.part("jobs.html", request, _jobs(pages, request))

    @router.get("/jobs/table")
    async def jobs_part(request: Request) -> Response:
        return await pages.part("jobs_table.html", request, _jobs(pages, request))

    @router.get("/jobs/{key}")
    async def job_page(request: Request, key: str) -> Response:
        story = await _found(pages, "explain", {"job": key})
        lines = (await pages.ask("logs", {"job": key, "lines": 200}))["lines"]
        return pages.show("job.html", request, job=story["standing"], story=story["told"], lines=lines,
                          memory=_job_memory(story), band=_band(story), asks=_asks_consent(story))  # fmt: skip

    @router.post("/jobs/{key}/cancel")
    async def cancel_part(key: str) -> Response:
        return await _act(pages, "cancel", key, "cancelling")

    @router.post("/jobs/{key}/approve")
    async def approve_part(key: str) -> Response:
        return await _act(pages, "approve", key, "approved: a prediction may restart it")


async def _act(pages: Pages, tool: str, key: str, done: str) -> Response:
    """Change a job for its user, if the server may."""
    if not pages.may_act:
        raise HTTPException(HTTPStatus.FORBIDDEN, "this server changes no jobs: start it with --allow-submit")
    await pages.ask(tool, {"jobs": [key]})
    return HTMLResponse(done)


def _asks_consent(story: Document) -> bool:
    """Tell whether the last decision was that a restart lacks the user's consent."""
    decisions = [event["says"] for event in story["told"] if event["kind"] in DECISIONS]
    return bool(decisions) and NO_CONSENT in decisions[-1]


class _Kept(StaticFiles):
    """Files that a browser may keep: their addresses have the release."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:  # noqa: ANN401 - as Starlette has it
        answer = super().file_response(*arguments, **more)
        answer.headers["Cache-Control"] = "private, max-age=86400"
        return answer


async def _found(pages: Pages, tool: str, arguments: Mapping[str, Any]) -> Document:
    """Return a tool's document for a page of its own."""
    try:
        return await pages.ask(tool, arguments)
    except LeadlineError as error:
        raise HTTPException(status_of(error), str(error)) from error


def _base(request: Request) -> str:
    """Return the way from a page to the root of the application, such as ``../``."""
    return "../" * _path(request).count("/") or "./"


def _path(request: Request) -> str:
    """Return the path of a page without that of the proxy."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "")).lstrip("/")


def form_arguments(query: Mapping[str, str]) -> Document:
    """Return the arguments of a form that were filled in.

    Raises:
        InvalidInput: one is not a number or not a time.
    """
    arguments: Document = {name: query[name].strip() for name in TEXTS if query.get(name, "").strip()}
    for name in NUMBERS:
        if text := query.get(name, "").strip():
            arguments[name] = _number(name, text)
    if text := query.get("deadline", "").strip():
        arguments["deadline_s"] = parse_duration_s(text)
    if places := [place.strip() for place in query.get("on", "").split(",") if place.strip()]:
        arguments["on"] = places
    return arguments


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(f"{name} is {text[:40]!r}: write a number")
    return int(value) if value.is_integer() else value


async def _options(pages: Pages, request: Request) -> Document:
    arguments = form_arguments(request.query_params)
    if "workload" not in arguments:
        raise InvalidInput("workload is missing: name a file, upload one, or paste a config.json")
    answer = await pages.ask("recommend", arguments)
    found = answer["options"]
    shown = found[:ROWS]
    currencies = Counter(option["estimate"]["currency"] for option in shown if option["estimate"]["cost"])
    usual = next(iter(dict(currencies.most_common(1))), "")
    currency = arguments.get("currency") or usual
    return {
        "answer": answer, "options": shown, "found": len(found), "rejections": answer["rejections"][:REJECTIONS],
        "currency": currency, "points": front_points(shown, currency), "query": str(request.query_params),
        "first": found[0] if found else None, "whole_node": _whole_node_cost(found[0]) if found else "",
    }  # fmt: skip


def _whole_node_cost(option: Document) -> str:
    """Return the cost of whole nodes for the expected time, as a beginner would ask for them; empty if unknown."""
    place = user_catalog().system(option["system"]).partition(option["partition"])
    elapsed = option["estimate"]["elapsed_s"]
    cost = whole_node_cost(place, option["resources"]["nodes"], elapsed["point"]) if elapsed else None
    return "" if cost is None else money(cost, option["estimate"]["currency"])


async def _memory(pages: Pages, request: Request) -> Document:
    place = request.query_params.get("place", "")
    arguments = {**form_arguments(request.query_params), "on": [place]}
    for name in ("deadline_s", "budget", "currency"):
        arguments.pop(name, None)
    report = await pages.ask("fit", arguments)
    report = report["fits"][0] if isinstance(report.get("fits"), list) else report
    series = _series(report)
    return {
        "report": report,
        "series": series,
        "peak": max((sum(m["held_bytes"].values()) for m in report["moments"]), default=0),
    }


def _series(report: Document) -> Document | None:
    """Return the memory over one step by category."""
    moments: Sequence[Document] = report["moments"]
    if not moments:
        return None
    names = sorted({name for moment in moments for name in moment["held_bytes"]})
    limit = next((check["there_bytes"] for check in report["checks"] if check["kind"] == "GPU"), None)
    held = {name: [moment["held_bytes"].get(name, 0) for moment in moments] for name in names}
    return {"share": [moment["share"] for moment in moments], "held": held, "limit": limit}


async def _jobs(pages: Pages, request: Request) -> Document:
    query = request.query_params
    limit = min(parse_whole(query.get("limit", "")) or 50, 1000)
    arguments = {"limit": limit, **({"all": True} if query.get("all") else {})}
    jobs = (await pages.ask("jobs", arguments))["jobs"]
    return {"jobs": jobs, "more": len(jobs) == limit}


def _job_memory(story: Document) -> Document | None:
    """Return the memory that the newest report says, and the limit."""
    used = [event["said"]["host_memory_bytes"] for event in story["told"] if "host_memory_bytes" in event["said"]]
    limit = story["job"]["spec"]["resources"]["memory_bytes_per_node"]
    return {"used": used[-1], "limit": limit} if used else None


def _band(story: Document) -> Document | None:
    """Return the predicted ends at each decision about the newest attempt, the oldest first; None below two."""
    began = (story["job"]["attempts"] or [{}])[-1].get("started_at")
    decided = [event for event in story["told"] if "total_low_s" in event["said"]]
    if not began or len(decided) < 2:
        return None
    began_s = _epoch_s(began)
    ends = {key: [began_s + event["said"][name] for event in decided]
            for key, name in (("point", "total_s"), ("low", "total_low_s"), ("high", "total_high_s"))}  # fmt: skip
    return {"at": [_epoch_s(event["at"]) for event in decided], **ends}


def _epoch_s(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
