"""The responses of the API are those that its OpenAPI document describes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest


def test_problems_have_the_documented_form(client: httpx.Client) -> None:
    document = client.get("/api/openapi.json").json()
    problem = {"$ref": "#/components/schemas/Problem"}
    assert document["components"]["schemas"]["Problem"]["properties"]["detail"]["type"] == "string"
    assert "HTTPValidationError" not in document["components"]["schemas"]
    requests: list[tuple[str, str, str, Any, int]] = [
        ("get", "/api/samples/{id}", "/api/samples/x", None, 422),
        ("get", "/api/samples/{id}", "/api/samples/99999", None, 404),
        ("get", "/api/samples/{id}/image", "/api/samples/99999/image", None, 404),
        ("get", "/api/samples/{id}/neighbors", "/api/samples/1/neighbors?label=999", None, 404),
        ("get", "/api/classes/{label}", "/api/classes/999", None, 404),
        ("get", "/api/audit", "/api/audit?limit=0", None, 422),
        ("post", "/api/search", "/api/search?label=999", {"strokes": [[[1, 1]]]}, 404),
        ("post", "/api/search", "/api/search", {"strokes": "no"}, 422),
        ("put", "/api/audit/{id}", "/api/audit/99999", {"decision": "keep"}, 404),
        ("put", "/api/audit/{id}", "/api/audit/1", {"decision": "maybe"}, 422),
    ]
    for method, route, path, body, status in requests:
        response = client.request(method, path, json=body)
        assert response.status_code == status, path
        assert isinstance(response.json()["detail"], str)
        documented = document["paths"][route][method]["responses"][str(status)]
        assert documented["content"]["application/json"]["schema"] == problem
    assert client.put("/api/audit/decisions.csv", json={"decision": "keep"}).status_code == 405


@pytest.mark.slow
def test_schemathesis_finds_nothing(address: str) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    found = str(program) if program.exists() else shutil.which("schemathesis")
    if found is None:
        pytest.skip("schemathesis is not installed: pip install -e '.[schema]'")
    command = [found, "run", f"{address}/api/openapi.json", "--max-examples", "30", "--seed", "1", "--no-color"]
    # Some rules are not in the document, such as "either strokes, a vector or a text".
    command += ["--exclude-checks", "positive_data_acceptance"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout[-5000:]
