"""JSON documents that several interfaces share, and their JSON Schemas."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from leadline.core.documents import to_document

if TYPE_CHECKING:
    from leadline.app.estimate.estimate import EstimateAnswer
    from leadline.app.models.predict import ModelAnswer
    from leadline.core.fit import FitReport

ESTIMATE, ESTIMATES, FIT, FITS = "leadline.estimate/1", "leadline.estimates/1", "leadline.fit/1", "leadline.fits/1"

DOCUMENTS: dict[str, tuple[str, str]] = {
    ESTIMATE: ("leadline.core.estimate", "Estimate"),
    ESTIMATES: ("leadline.app.estimate.estimate", "EstimateAnswer"),
    FIT: ("leadline.core.fit", "FitReport"),
    "leadline.recommendation/1": ("leadline.core.recommendation", "Recommendation"),
    "leadline.run/1": ("leadline.core.runs", "Run"),
    "leadline.device/1": ("leadline.core.hardware", "Device"),
    "leadline.system/1": ("leadline.core.systems", "System"),
    "leadline.job/1": ("leadline.app.jobs.job_status", "JobStatus"),
    "leadline.story/1": ("leadline.app.jobs.event_log", "EventLog"),
}
"""Published document → module and class of its noun; a document may have more keys than its noun has fields."""


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


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a published document, a key of ``DOCUMENTS``."""
    module, noun = DOCUMENTS[name]
    types = [getattr(import_module(module), noun)]
    (schema,), definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "type": "object",
        "properties": {"schema": {"const": name}},
        "required": ["schema"],
        "allOf": [schema],
        "$defs": definitions,
    }
