"""JSON documents that several interfaces share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leadline.core.documents import to_document

if TYPE_CHECKING:
    from leadline.app.estimate.estimate import EstimateAnswer
    from leadline.app.models.predict import ModelAnswer
    from leadline.core.fit import FitReport

ESTIMATE, ESTIMATES, FIT, FITS = "leadline.estimate/1", "leadline.estimates/1", "leadline.fit/1", "leadline.fits/1"


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
