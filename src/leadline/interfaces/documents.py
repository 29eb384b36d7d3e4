"""JSON documents that several interfaces share."""

from typing import Any

from leadline.app.estimate.estimate import EstimateAnswer
from leadline.app.models.predict import ModelAnswer
from leadline.core.documents import to_document

SCHEMA, LIST_SCHEMA = "leadline.estimate/1", "leadline.estimates/1"


def estimate_document(answer: EstimateAnswer) -> dict[str, Any]:
    """Return the estimate of a single place as a flat document, several as a list."""
    if len(answer.estimates) != 1:
        return to_document(answer, LIST_SCHEMA)
    whole = to_document(answer, "")
    shared = {name: whole[name] for name in ("workload", "graph", "assumed")}
    return {**to_document(answer.estimates[0], SCHEMA), **shared, "trace_notes": list(answer.notes)}


def model_estimate_document(answer: ModelAnswer) -> dict[str, Any]:
    """Return the estimate of a single configuration as a flat document, several as a list."""
    shared = {"application": answer.application, "notes": answer.notes, "left_out": answer.left_out}
    documents = [
        {**to_document(estimate, SCHEMA), **shared, "parameters": parameters}
        for estimate, parameters in zip(answer.estimates, answer.parameters, strict=True)
    ]
    return documents[0] if len(documents) == 1 else {"schema": LIST_SCHEMA, **shared, "estimates": documents}
