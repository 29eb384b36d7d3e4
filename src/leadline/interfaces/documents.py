"""JSON documents that several interfaces share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from leadline.core.documents import to_document

if TYPE_CHECKING:
    from leadline.app.estimate.estimate import EstimateAnswer
    from leadline.app.models.predict import ModelAnswer
    from leadline.core.fit import FitReport
    from leadline.core.plane import Attempt
    from leadline.core.runs import Run

ESTIMATE, ESTIMATES, FIT, FITS = "leadline.estimate/1", "leadline.estimates/1", "leadline.fit/1", "leadline.fits/1"
RECOMMENDATION, STORY, LOGS = "leadline.recommendation/1", "leadline.story/1", "leadline.logs/1"
RUN, HISTORY, JOB, JOBS = "leadline.run/1", "leadline.history/1", "leadline.job/1", "leadline.jobs/1"
DEVICE, DEVICES, SYSTEM, SYSTEMS = "leadline.device/1", "leadline.devices/1", "leadline.system/1", "leadline.systems/1"
MODEL_CARD, MODELS = "leadline.model/1", "leadline.models/1"
CAMPAIGN, CAMPAIGNS = "leadline.campaign-status/1", "leadline.campaigns/1"
PIPELINE, PIPELINE_PLAN = "leadline.pipeline-status/1", "leadline.pipeline-plan/1"
PIPELINE_SIMULATION = "leadline.pipeline-simulation/1"
PIPELINE_SEASON, PIPELINES = "leadline.pipeline-season/1", "leadline.pipelines/1"


def estimate_document(answer: "EstimateAnswer") -> dict[str, Any]:
    """Return the estimate of a single place as a flat document, several as a list."""
    if len(answer.estimates) != 1:
        return to_document(answer, ESTIMATES)
    whole = to_document(answer, "")
    shared = {name: whole[name] for name in ("workload", "graph", "assumed")}
    return {**to_document(answer.estimates[0], ESTIMATE), **shared, "trace_notes": list(answer.notes)}


def model_estimate_document(answer: "ModelAnswer") -> dict[str, Any]:
    """Return the estimate of a single configuration as a flat document, several as a list."""
    shared = {"application": answer.application, "notes": answer.notes, "left_out": answer.left_out}
    documents = [
        {**to_document(estimate, ESTIMATE), **shared, "parameters": parameters}
        for estimate, parameters in zip(answer.estimates, answer.parameters, strict=True)
    ]
    return documents[0] if len(documents) == 1 else {"schema": ESTIMATES, **shared, "estimates": documents}


def fit_document(reports: Sequence["FitReport"]) -> dict[str, Any]:
    """Return the report of a single device as a flat document, several as a list."""
    documents = [{**to_document(report, FIT), "fits": report.fits} for report in reports]
    return documents[0] if len(documents) == 1 else {"schema": FITS, "fits": documents}


def logs_document(job: str, attempt: "Attempt | None", lines: Sequence[str]) -> dict[str, Any]:
    """Return the end of the output of a job's attempt; no attempt if it has not started."""
    return {"schema": LOGS, "job": job, "attempt": attempt and attempt.number, "lines": list(lines)}


def run_document(run: "Run") -> dict[str, Any]:
    """Return a past run with its comparison of predicted and measured values."""
    from leadline.app.jobs.history import compare_run  # noqa: PLC0415 - an estimate needs no database

    return {**to_document(run, RUN), "comparison": msgspec.to_builtins(compare_run(run))}


def models_document() -> dict[str, Any]:
    """Return the user's trained models: name, file, card, and why a card cannot be read."""
    from leadline.app.models.train import list_models  # noqa: PLC0415 - numpy loads with it

    rows = [{"name": file.stem, "file": str(file), "card": card, "why_not": why} for file, card, why in list_models()]
    return to_document({"models": rows}, MODELS)
