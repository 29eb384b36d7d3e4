"""Property-based requests over the whole OpenAPI document: no answer is a fault, and each is what the document says."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.interfaces.web.conftest import TOKEN

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

FEW = settings(
    max_examples=10, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def test_no_request_finds_a_fault(address):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    document = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json", headers=headers)
    operations = [operation.ok() for operation in document.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:

        @FEW
        @given(case=operation.as_strategy())
        def check(case):
            if not case.path.endswith("/events"):  # these do not end
                # only the verb can judge whether there is such a file or system
                case.call_and_validate(headers=headers, timeout=60, excluded_checks=[checks.positive_data_acceptance])

        check()
