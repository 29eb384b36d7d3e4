"""The JSON Schemas of the documents that the commands print, which the documentation publishes."""

from importlib import import_module
from typing import Any

import msgspec

from leadline.interfaces.documents import ESTIMATE, ESTIMATES, FIT

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
