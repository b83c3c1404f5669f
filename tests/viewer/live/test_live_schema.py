"""Any request the schema of the live page allows, and many it does not: the server never fails."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis (pip install schemathesis)")
checks = pytest.importorskip("schemathesis.specs.openapi.checks", reason="needs schemathesis")

ANYTHING_GOES = ("/api/session", "/api/houses/{house}")  # nothing one sends is of the wrong kind
REAL = {"house": "grid", "start": "g00", "goal": "g22"}


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_no_request_makes_the_server_fail(address: str, mode: str) -> None:
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 5
    for operation in operations:
        if mode == "negative" and operation.path in ANYTHING_GOES:
            continue
        _ask_anything(operation, schemathesis.GenerationMode(mode))


def _ask_anything(operation: Any, mode: Any) -> None:
    promised = [checks.status_code_conformance, checks.content_type_conformance]
    if operation.method == "get":  # a stream of events has no body to compare
        promised.append(checks.response_schema_conformance)

    @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
    @settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any, real: bool) -> None:
        if real and isinstance(case.body, dict):
            case.body |= {name: value for name, value in REAL.items() if name in case.body}
        response = case.call()
        assert response.status_code < 500, (case.method, case.path, response.text)
        case.validate_response(response, checks=promised)

    ask()
