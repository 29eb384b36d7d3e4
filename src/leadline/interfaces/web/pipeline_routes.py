"""The pages of pipelines, and of their review queues: images whose labels a person confirms or corrects."""

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from markupsafe import escape

from leadline.app.pipelines.review import answer_review, figure_file, read_review, review_file
from leadline.core.documents import to_document
from leadline.interfaces.page_text import QUANTITIES, plain
from leadline.interfaces.web.pages import Document, Pages
from leadline.interfaces.web.plot_series import metric_series, run_points
from leadline.interfaces.web.settings import WebSettings

PIPELINE_RUNS = 100
"""Runs that the page of a pipeline lists."""
SHOWN = 20
"""Files on one page."""


def pipeline_routes(settings: WebSettings, pages: Pages) -> APIRouter:
    """Return the routes of pipelines and review queues; none of them is part of the REST API."""
    router = APIRouter(include_in_schema=False)
    folder = settings.folder

    async def review(name: str, stage: str) -> Document:
        answer = await pages.work(lambda: to_document(read_review(name, stage, folder), ""))
        return {**answer, "shown": answer["waiting"][:SHOWN]}

    @router.get("/pipelines")
    async def pipelines_page(request: Request) -> Response:
        """Show the pipelines."""
        return await pages.page("pipelines.html", request, pages.ask("pipelines", {}))

    @router.get("/pipelines/{name}")
    async def pipeline_page(request: Request, name: str) -> Response:
        """Show the season of one pipeline."""
        return await pages.page("pipeline.html", request, _pipeline(pages, name))

    @router.get("/pipelines/{name}/figures/{figure}")
    async def figure(name: str, figure: str) -> Response:
        """Return an image in the pipeline's folder of figures."""
        return await _image(pages, lambda: figure_file(name, figure, folder))

    @router.get("/pipelines/{name}/review/{stage}")
    async def review_page(request: Request, name: str, stage: str) -> Response:
        """Show the files that wait for review."""
        return await pages.page("review.html", request, review(name, stage))

    @router.get("/pipelines/{name}/review/{stage}/file")
    async def file(request: Request, name: str, stage: str) -> Response:
        """Return an image that waits for review."""
        return await _image(pages, lambda: review_file(name, stage, request.query_params.get("id", ""), folder))

    @router.post("/pipelines/{name}/review/{stage}")
    async def answer(request: Request, name: str, stage: str) -> Response:
        """Keep the label of one file."""
        if not pages.may_act:
            raise HTTPException(HTTPStatus.FORBIDDEN, "this server keeps no answers: start it with --allow-submit")
        form = parse_qs((await request.body()).decode(errors="replace"))
        identity, label = (form.get(key, [""])[0] for key in ("id", "label"))
        kept = await pages.work(lambda: to_document(answer_review(name, stage, identity, label, folder), ""))
        return HTMLResponse(f'<p role="status">{escape(plain(kept["id"]))}: {escape(plain(kept["label"]))}</p>')

    return router


async def _image(pages: Pages, find: Callable[[], tuple[Path, str]]) -> Response:
    def read() -> Document:
        path, kind = find()
        return {"path": path, "media_type": kind}

    return FileResponse(**await pages.work(read))


async def _pipeline(pages: Pages, name: str) -> Document:
    """Return the season of a pipeline, with the plots of its stages."""
    season = await pages.ask("pipelines", {"name": name})
    stages = [stage["name"] for stage in season["status"]["stages"]]
    plots = [(stage, run_points(season["runs"], stage, quantity)) for stage in stages for quantity in QUANTITIES]
    compared = [(stage, plot) for stage, plot in plots if plot is not None]
    series = [(metric, metric_series(metric)) for metric in season["metrics"] if len(metric["at"]) > 1]
    runs = season["runs"][:PIPELINE_RUNS]
    return {"name": name, "season": season, "compared": compared, "series": series, "runs": runs}
