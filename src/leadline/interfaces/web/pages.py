"""The pages: each shows documents of the tools as HTML, and works at any path of a proxy."""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
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
from leadline.app.estimate.recommend import whole_node_request
from leadline.app.jobs.history import list_runs
from leadline.app.machines.systems import last_change
from leadline.app.models.retrain import describe_drift
from leadline.app.models.train import list_models
from leadline.app.settings import catalog_dir
from leadline.app.workloads.read import MODEL_SUFFIXES
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.plane import NO_CONSENT, EventKind
from leadline.core.units import parse_duration_s, parse_whole
from leadline.interfaces.page_text import FILTERS, money
from leadline.interfaces.tools import Tool, tools
from leadline.interfaces.web.plot_series import (
    front_points,
    learning_curve,
    measured_points,
    median_shares,
    memory_series,
    predicted_ends,
)
from leadline.interfaces.web.problems import status_of
from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.tasks import ENDED, TaskPool
from leadline.training.records import application_name

HERE = Path(__file__).parent
PAGES = (("", "Estimate"), ("jobs", "Jobs"), ("systems", "Systems"), ("campaigns", "Campaigns"),
         ("pipelines", "Pipelines"), ("models", "Models"), ("history", "History"), ("chat", "Chat"))  # fmt: skip
OPTIONS, MOST_OPTIONS, MOST_REJECTIONS = 20, 500, 100
"""Options that are shown at first and on demand, and rejections."""
MOST_ROWS = 1000
"""Jobs or runs on one page."""
LOG_LINES = 200
"""Last lines of a job's output on its page."""
COUNTS = ("batch", "gpus", "samples", "steps", "seq")
NUMBERS = (*COUNTS, "epochs", "budget")
TEXTS = ("workload", "phase", "precision", "currency")
LIMITS = ("deadline_s", "budget", "currency")
"""Arguments of a recommendation that memory does not depend on."""
DECISIONS = (EventKind.DECISION, EventKind.APPROVE)

Document = dict[str, Any]


class Pages:
    """Renders the templates, and answers with them."""

    def __init__(self, settings: WebSettings, pool: TaskPool) -> None:
        self.pool = pool
        self.may_act = settings.allow_submit
        self.tools: dict[str, Tool] = tools(settings.folder, scripts=settings.allow_scripts)
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= FILTERS

    async def ask(self, tool: str, arguments: Mapping[str, Any]) -> Document:
        """Return a tool's document."""
        return await self.pool.run(partial(self.tools[tool].call, arguments))

    async def work(self, read: Callable[[], Document]) -> Document:
        """Return what a function reads, in a thread."""
        return await self.pool.run(read)

    def show(self, template: str, request: Request, status: int = HTTPStatus.OK, **values: Any) -> HTMLResponse:  # noqa: ANN401
        """Return a page; its links are relative to its own address, so that any proxy may prefix them."""
        path = _path(request)
        shared = {
            "base": "../" * path.count("/") or "./", "page": path.partition("/")[0], "pages": PAGES,
            "version": __version__, "may_act": self.may_act,
        }  # fmt: skip
        return HTMLResponse(self._templates.get_template(template).render({**shared, **values}), status)

    async def page(self, template: str, request: Request, values: Awaitable[Document]) -> HTMLResponse:
        """Return a whole page, or one about the error if its tool refused."""
        try:
            return self.show(template, request, **await values)
        except LeadlineError as error:
            return self.problem(request, status_of(error), str(error))

    def problem(self, request: Request, status: int, detail: str) -> HTMLResponse:
        """Return a page about an error."""
        return self.show("problem.html", request, status, error=detail)

    async def part(self, template: str, request: Request, values: Awaitable[Document]) -> HTMLResponse:
        """Return a part of a page, with the error in it if its tool refused."""
        try:
            return self.show(template, request, error="", **await values)
        except LeadlineError as error:
            return self.show(template, request, error=str(error))


def page_routes(pages: Pages) -> APIRouter:
    """Return the routes of all pages; none of them is part of the REST API."""
    router = APIRouter(include_in_schema=False)
    _add_estimate(router, pages)
    _add_jobs(router, pages)

    @router.get("/systems")
    async def systems_page(request: Request) -> Response:
        """Show the configuration database."""
        return await pages.page("systems.html", request, _systems(pages))

    @router.get("/systems/{name}")
    async def system_page(request: Request, name: str) -> Response:
        """Show one system."""
        return await pages.page("system.html", request, _system(pages, name))

    @router.get("/campaigns")
    async def campaigns_page(request: Request) -> Response:
        """Show the campaigns."""
        return await pages.page("campaigns.html", request, _campaigns(pages))

    @router.get("/models")
    async def models_page(request: Request) -> Response:
        """Show the trained models with their cards."""
        return await pages.page("models.html", request, pages.work(_models))

    @router.get("/history")
    async def history_page(request: Request) -> Response:
        """Show past runs."""
        return await pages.page("history.html", request, _history(pages, request))

    router.mount("/static", _CachedFiles(directory=HERE / "static"), name="static")
    return router


def _add_estimate(router: APIRouter, pages: Pages) -> None:
    """Add the page of estimates, and its parts."""

    @router.get("/")
    async def estimate_page(request: Request) -> Response:
        workload = request.query_params.get("workload", "")
        return pages.show("estimate.html", request, workload=workload, suffixes=MODEL_SUFFIXES)

    @router.get("/estimate")
    async def estimate_part(request: Request) -> Response:
        return await pages.part("options.html", request, _options(pages, request))

    @router.get("/memory")
    async def memory_part(request: Request) -> Response:
        return await pages.part("memory.html", request, _memory(pages, request))


def _add_jobs(router: APIRouter, pages: Pages) -> None:
    """Add the pages about jobs."""

    @router.get("/jobs")
    async def jobs_page(request: Request) -> Response:
        return await pages.part("jobs.html", request, _jobs(pages, request))

    @router.get("/jobs/table")
    async def jobs_part(request: Request) -> Response:
        return await pages.part("jobs_table.html", request, _jobs_part(pages, request))

    @router.get("/tasks")
    async def tasks_part(request: Request) -> Response:
        tasks = pages.pool.to_document()["tasks"]
        return pages.show("tasks.html", request, tasks=tasks, moving=any(task["state"] not in ENDED for task in tasks))

    @router.get("/jobs/{key}")
    async def job_page(request: Request, key: str) -> Response:
        return await pages.page("job.html", request, _job(pages, request, key))

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


class _CachedFiles(StaticFiles):
    """Files that a browser may keep: their addresses have the release."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:  # noqa: ANN401 - as Starlette has it
        answer = super().file_response(*arguments, **more)
        answer.headers["Cache-Control"] = "private, max-age=86400"
        return answer


def _path(request: Request) -> str:
    """Return the path of a page without that of the proxy."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "")).lstrip("/")


def _limit(request: Request, usual: int) -> int:
    """Return how many rows an address asks for."""
    return min(parse_whole(request.query_params.get("limit", "")) or usual, MOST_ROWS)


def form_arguments(query: Mapping[str, str]) -> Document:
    """Return the arguments of a form that were filled in.

    Raises:
        InvalidInput: one is not a number above 0 or not a time.
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
    if not (math.isfinite(value) and value > 0) or (name in COUNTS and not value.is_integer()):
        raise InvalidInput(f"{name} is {text[:40]!r}: write a {'whole ' * (name in COUNTS)}number above 0")
    return int(value) if value.is_integer() else value


async def _options(pages: Pages, request: Request) -> Document:
    """Return the values of the answer to the form."""
    arguments = form_arguments(request.query_params)
    if "workload" not in arguments:
        raise InvalidInput("workload is missing: name a file, upload one, or paste a config.json")
    shown = request.query_params.get("shown", "").split(",")
    moving = shown != [""]
    answer = await _recommend(pages, arguments, shown if moving else ())
    options = answer["options"][: MOST_OPTIONS if request.query_params.get("all") else OPTIONS]
    currency, points = _front(options, arguments.get("currency"))
    return {
        "answer": answer, "options": options, "found": len(answer["options"]), "currency": currency, "points": points,
        "rejections": answer["rejections"][:MOST_REJECTIONS], "moving": moving,
        "query": request.url.remove_query_params(["shown", "all"]).query,
        **(_beside_whole_nodes(options[0]) if options else {}),
    }  # fmt: skip


async def _recommend(pages: Pages, arguments: Document, shown: Sequence[str]) -> Document:
    """Return the answer for the places shown, at once while a slider moves, or else for all."""
    # Beside GPUs, the page leaves CPUs out: simulating their heap takes longer than all else.
    if shown:
        with suppress(LeadlineError):  # a place may be none any more, such as CPUs once the job takes GPUs
            return await pages.ask("recommend", {**arguments, "on": shown})
    return await pages.ask("recommend", arguments)


def _front(options: Sequence[Document], wanted: str | None) -> tuple[str, list[Document]]:
    """Return the points of a plot and their currency: the wanted one, the first option's, or that of most options."""
    charged = Counter(option["estimate"]["currency"] for option in options if option["estimate"]["cost"])
    most_common = [currency for currency, _ in charged.most_common()]
    for currency in filter(None, (wanted, *(option["estimate"]["currency"] for option in options[:1]), *most_common)):
        if len(points := front_points(options, currency)) > 1:
            return currency, points
    return "", []


def _beside_whole_nodes(option: Document) -> Document:
    """Return the first option, and beside it a beginner's request for whole nodes and its cost for the same time."""
    place = user_catalog().system(option["system"]).partition(option["partition"])
    estimate = option["estimate"]
    elapsed_s = estimate["elapsed_s"]["point"] if estimate["elapsed_s"] else math.nan
    whole_nodes, cost = whole_node_request(place, option["resources"]["nodes"], elapsed_s)
    whole_cost = money(None if cost is None or math.isnan(cost) else cost, estimate["currency"])
    return {"first": option, "whole_nodes": to_document(whole_nodes, ""), "whole_cost": whole_cost}


async def _memory(pages: Pages, request: Request) -> Document:
    """Return the values of the memory of one option."""
    given = form_arguments(request.query_params)
    arguments = {name: value for name, value in given.items() if name not in LIMITS}
    place = request.query_params.get("place", "")
    answer = await pages.ask("fit", {**arguments, "on": [place], "timeline": True})
    report = answer["fits"][0] if isinstance(answer["fits"], list) else answer
    return {"report": report, "series": memory_series(report)}


async def _systems(pages: Pages) -> Document:
    return {**await pages.ask("systems", {}), **await pages.ask("devices", {})}


async def _system(pages: Pages, name: str) -> Document:
    system = await pages.ask("systems", {"name": name})
    return await pages.work(lambda: {"system": system, "change": last_change(system["name"], catalog_dir())})


async def _campaigns(pages: Pages) -> Document:
    """Return the campaigns, each with its learning curve."""
    campaigns = (await pages.ask("campaigns", {}))["campaigns"]
    return {"campaigns": [(campaign, learning_curve(campaign["runs"])) for campaign in campaigns]}


async def _history(pages: Pages, request: Request) -> Document:
    limit = _limit(request, usual=100)
    runs = (await pages.ask("history", {"limit": limit}))["runs"]
    return {"runs": runs, "more": len(runs) == limit < MOST_ROWS, "most": MOST_ROWS, "shares": median_shares(runs)}


async def _jobs(pages: Pages, request: Request) -> Document:
    limit = _limit(request, usual=50)
    arguments = {"limit": limit, **({"all": True} if request.query_params.get("all") else {})}
    jobs = (await pages.ask("jobs", arguments))["jobs"]
    return {"jobs": jobs, "more": len(jobs) == limit, "shows_ended": "all" in arguments}


async def _jobs_part(pages: Pages, request: Request) -> Document:
    """Return the values of the table alone, whose links count from the address of the page that it is in."""
    return {**await _jobs(pages, request), "base": "./"}


async def _job(pages: Pages, request: Request, key: str) -> Document:
    """Return the values of a job's page; its plot needs the whole event log, which its list shows on demand only."""
    shows_all = bool(request.query_params.get("all"))
    whole = await pages.ask("explain", {"job": key, "all": True})
    log = whole if shows_all else await pages.ask("explain", {"job": key})
    lines = (await pages.ask("logs", {"job": key, "lines": LOG_LINES}))["lines"]
    return {
        "job": log["standing"], "events": log["told"], "all": shows_all, "lines": lines, "memories": _memories(log),
        "attempts": list(zip(log["job"]["attempts"], log["used"], strict=True)), "ends": predicted_ends(whole),
        "asks": _lacks_consent(log),
    }  # fmt: skip


def _memories(log: Document) -> list[Document]:
    """Return the memory in the newest report of the newest attempt, on the host and the GPU, each with its limit."""
    if not log["job"]["attempts"]:
        return []
    attempt, predicted = log["job"]["attempts"][-1], log["job"]["predicted"]
    reports = [event["said"] for event in log["told"]
               if event["attempt"] == attempt["number"] and event["kind"] == EventKind.PROGRESS]  # fmt: skip
    limits = {
        "host": attempt["resources"]["memory_bytes_per_node"],
        "GPU": predicted["device_memory_bytes"] if predicted else None,
    }
    used = {kind: reports[-1].get(f"{kind.lower()}_memory_bytes") if reports else None for kind in limits}
    return [{"kind": kind, "used": used[kind], "limit": limit} for kind, limit in limits.items() if used[kind]]


def _lacks_consent(log: Document) -> bool:
    """Return whether the last decision was that a restart lacks the user's consent."""
    decisions = [event["says"] for event in log["told"] if event["kind"] in DECISIONS]
    return bool(decisions) and NO_CONSENT in decisions[-1]


def _models() -> Document:
    """Return the trained models, each with the predictions of its application's newest runs."""
    models = list_models()
    runs = list_runs(MOST_ROWS) if models else ()
    values = []
    for file, card, why_not in models:
        own_runs = [run for run in runs if card and application_name(run) == card.application]
        quantities = [target.target for target in card.targets] if card else []
        compared = [(quantity, measured_points(own_runs, quantity), describe_drift(own_runs, quantity))
                    for quantity in quantities]  # fmt: skip
        values.append({"name": file.stem, "card": card, "why_not": why_not, "compared": compared})
    return {"models": values}
