"""The OpenAPI document: arguments and answers as the tools and the published JSON Schemas describe them."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from leadline.interfaces.json_schemas import json_schema
from leadline.interfaces.tools import Tool
from leadline.interfaces.web.problems import MEDIA_TYPE, PROBLEM_SCHEMA
from leadline.interfaces.web.tasks import TASK, TASK_SCHEMA, TASKS_SCHEMA
from leadline.interfaces.web.uploads import UPLOAD, UPLOAD_SCHEMA

Responses = dict[int | str, dict[str, Any]]

JSON = "application/json"
REFUSALS = {
    "400": "the body is not JSON", "401": "no token, or a wrong one", "403": "not allowed here",
    "404": "no such name", "405": "wrong method", "409": "not in this state", "410": "the task is gone",
    "413": "the body is too long", "415": "the body is of another type", "421": "another host",
    "422": "the arguments cannot be used", "429": "too many requests", "500": "a fault of Leadline's own",
    "503": "the scheduler does not answer",
}  # fmt: skip
HEADERS = {
    "202": {"Location": "Address of the task, from that of the request."},
    "401": {"WWW-Authenticate": "The scheme of the token, Bearer."},
    "405": {"Allow": "Methods that are allowed here."},
    "429": {"Retry-After": "Seconds to wait; absent where as many tasks as are kept have not ended."},
}
"""Status → header of its answers → description."""
EVENT_SCHEMA = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}, "id": {"type": "string"}},
}
OWN_SCHEMAS = {"problem": PROBLEM_SCHEMA, "task-1": TASK_SCHEMA, "tasks-1": TASKS_SCHEMA, "upload-1": UPLOAD_SCHEMA}
TASK_LINKS = {
    name: {"operationId": operation, "parameters": {"task_id": "$response.body#/id"}}
    for name, operation in (("state", "task"), ("events", "task-events"), ("cancel", "cancel-task"))
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "estimate": {"workload": "config.json", "on": ["A100 SXM4 80GB"], "batch": 4},
    "fit": {"workload": "config.json", "on": ["T4"], "batch": 4},
    "recommend": {"workload": "config.json", "steps": 1000, "deadline_s": 86400.0, "budget": 100.0},
    "systems": {"name": "Pitzer"},
    "devices": {"name": "MI250X"},
    "jobs": {"all": True, "limit": 20},
    "logs": {"job": "train", "lines": 20},
    "explain": {"job": "train"},
    "history": {"limit": 20},
    "submit": {"command": ["python", "train.py"], "on": ["local"], "name": "train"},
    "cancel": {"jobs": ["train"]},
    "approve": {"jobs": ["train"]},
}
"""Tool → arguments that a reader of the document may try; a tool without takes ``{}``."""


def request_body(tool: Tool) -> dict[str, Any]:
    """Return the description of a tool's arguments, with an example."""
    content = {"schema": tool.schema, "example": EXAMPLES.get(tool.name, {})}
    return {"requestBody": {"required": True, "content": {JSON: content}}}


def upload_body(most_bytes: int) -> dict[str, Any]:
    """Return the description of an uploaded file."""
    content = {"application/octet-stream": {"schema": {"type": "string", "maxLength": most_bytes}}}
    text = f"The file itself, at most {most_bytes:,} bytes."
    return {"requestBody": {"required": True, "description": text, "content": content}}


def answers(documents: Iterable[str], status: int = HTTPStatus.OK, links: dict[str, Any] | None = None) -> Responses:
    """Return the responses of an operation that answers with one of these documents, or refuses."""
    references = [{"$ref": f"#/components/schemas/{component(document)}"} for document in documents]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    answer = {
        "description": "The answer.",
        "content": {JSON: {"schema": schema}},
        **_headers(str(int(status))),
        **({"links": links} if links else {}),
    }
    return {str(int(status)): answer, **_refusals()}


def task_answers(status: int = HTTPStatus.OK) -> Responses:
    """Return the responses of an operation that answers with a task, with links to what can be done with it."""
    return answers([TASK], status, TASK_LINKS)


def upload_answers() -> Responses:
    """Return the responses of an upload."""
    return answers([UPLOAD], HTTPStatus.CREATED)


def event_streams() -> Responses:
    """Return the responses of an operation that answers with server-sent events, or refuses."""
    stream = {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": EVENT_SCHEMA}}}
    return {"200": stream, **_refusals()}


def components(tools: Iterable[Tool]) -> dict[str, Any]:
    """Return the schemas of all documents; the definitions in them become components, too."""
    schemas = dict(OWN_SCHEMAS)
    for document in sorted({document for tool in tools for document in tool.documents}):
        schema = json_schema(document)
        schemas |= {name: _moved(definition) for name, definition in schema.pop("$defs", {}).items()}
        schema.pop("$schema")
        schemas[component(document)] = _moved(schema)
    return schemas


def component(document: str) -> str:
    """Return the name of a document as a component: ``leadline.estimate/1`` is ``estimate-1``."""
    return document.removeprefix("leadline.").replace("/", "-")


def _refusals() -> Responses:
    """Return the responses of every operation that are problem documents."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/problem"}}}
    return {
        status: {"description": f"{text[0].upper()}{text[1:]}.", "content": content, **_headers(status)}
        for status, text in REFUSALS.items()
    }


def _headers(status: str) -> dict[str, Any]:
    """Return the description of the headers of an answer, if it has any of its own."""
    described = {name: {"description": text, "schema": {"type": "string"}}
                 for name, text in HEADERS.get(status, {}).items()}  # fmt: skip
    return {"headers": described} if described else {}


def _moved(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a schema whose references lead to components."""
    if isinstance(schema, dict):
        return {
            key: value.replace("#/$defs/", "#/components/schemas/") if key == "$ref" else _moved(value)
            for key, value in schema.items()
        }
    return [_moved(value) for value in schema] if isinstance(schema, list) else schema
