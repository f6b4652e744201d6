"""What every error looks like."""

from typing import Any

import httpx

MEMBERS = ["type", "title", "status", "detail", "instance", "code", "request_id"]


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that an answer is a problem document of a status and a code, and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert list(found)[:7] == MEMBERS
    assert (found["status"], found["code"]) == (status, code)
    assert found["type"] == f"urn:bearings:{code}"
    assert found["title"]
    assert found["detail"]
    assert answer.headers["x-request-id"] == found["request_id"]
    if status in {429, 503}:
        assert int(answer.headers["retry-after"]) > 0
    return found


def pointers(answer: httpx.Response) -> list[str]:
    """Return where a request is wrong."""
    return [each["pointer"] for each in problem(answer, 422, "invalid_request")["errors"]]
