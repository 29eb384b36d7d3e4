"""The JSON Schemas of the documents that the interfaces answer with, which the documentation publishes."""

from importlib import import_module
from typing import Any

import msgspec

from leadline.interfaces import documents

DOCUMENTS: dict[str, tuple[str, str]] = {
    documents.ESTIMATE: ("leadline.core.estimate", "Estimate"),
    documents.ESTIMATES: ("leadline.app.estimate.estimate", "EstimateAnswer"),
    documents.FIT: ("leadline.core.fit", "FitReport"),
    documents.RECOMMENDATION: ("leadline.core.recommendation", "Recommendation"),
    documents.RUN: ("leadline.core.runs", "Run"),
    documents.DEVICE: ("leadline.core.hardware", "Device"),
    documents.SYSTEM: ("leadline.core.systems", "System"),
    documents.JOB: ("leadline.app.jobs.job_status", "JobStatus"),
    documents.STORY: ("leadline.app.jobs.event_log", "EventLog"),
    documents.MODEL_CARD: ("leadline.training.model_card", "ModelCard"),
    documents.CAMPAIGN: ("leadline.app.campaigns.runs", "CampaignStatus"),
    documents.PIPELINE: ("leadline.app.pipelines.runs", "PipelineStatus"),
    documents.PIPELINE_PLAN: ("leadline.app.pipelines.plan", "PipelinePlan"),
    documents.PIPELINE_SIMULATION: ("leadline.app.pipelines.simulate", "PipelineSimulation"),
    documents.PIPELINE_SEASON: ("leadline.app.pipelines.report", "PipelineSeason"),
    documents.PIPELINES: ("leadline.app.pipelines.report", "PipelineList"),
}
"""Published document → module and class of its noun; a document may have more keys than its noun has fields."""

LISTS: dict[str, tuple[str, str]] = {
    documents.FITS: ("fits", documents.FIT),
    documents.SYSTEMS: ("systems", documents.SYSTEM),
    documents.DEVICES: ("devices", documents.DEVICE),
    documents.JOBS: ("jobs", documents.JOB),
    documents.HISTORY: ("runs", documents.RUN),
    documents.CAMPAIGNS: ("campaigns", documents.CAMPAIGN),
}
"""Published document with a list → the key of the list, and the document whose noun its items are."""

_TEXT: dict[str, Any] = {"type": "string"}
PLAIN: dict[str, dict[str, Any]] = {
    documents.LOGS: {
        "job": _TEXT, "attempt": {"type": ["integer", "null"]}, "lines": {"type": "array", "items": _TEXT},
    },
    documents.MODELS: {
        "models": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": _TEXT, "file": _TEXT, "card": {"type": ["object", "null"]}, "why_not": _TEXT,
                },
            },
        },
    },
}  # fmt: skip
"""Published document without a noun → its properties."""


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a published document, a key of ``DOCUMENTS``, ``LISTS`` or ``PLAIN``."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "type": "object",
        "properties": {"schema": {"const": name}, **PLAIN.get(name, {})},
        "required": ["schema", *PLAIN.get(name, {})],
    }
    if name in PLAIN:
        return schema
    key, noun = LISTS.get(name, (None, name))
    module, type_name = DOCUMENTS[noun]
    (item,), definitions = msgspec.json.schema_components(
        [getattr(import_module(module), type_name)], ref_template="#/$defs/{name}"
    )
    if key is None:
        return {**schema, "allOf": [item], "$defs": definitions}
    schema["properties"][key] = {"type": "array", "items": item}
    return {**schema, "required": ["schema", key], "$defs": definitions}
