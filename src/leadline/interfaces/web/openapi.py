"""The OpenAPI document: arguments and answers as the tools and the published JSON Schemas describe them."""

from collections.abc import Iterable
from typing import Any

from leadline.interfaces.json_schemas import json_schema
from leadline.interfaces.tools import Tool
from leadline.interfaces.web.problems import MEDIA_TYPE, PROBLEM_SCHEMA

Responses = dict[int | str, dict[str, Any]]

REFUSALS = {
    "400": "the body is not JSON", "401": "no token, or a wrong one", "403": "not allowed here",
    "404": "no such name", "405": "wrong method", "413": "the body is too long", "415": "the body is of another type",
    "421": "another host", "422": "the arguments cannot be used", "429": "too many requests",
    "503": "the scheduler does not answer",
}  # fmt: skip


def component(document: str) -> str:
    """Return the name of a document as a component: ``leadline.estimate/1`` is ``estimate-1``."""
    return document.removeprefix("leadline.").replace("/", "-")


def answers(tool: Tool) -> Responses:
    """Return the responses of a tool's operation."""
    references = [{"$ref": f"#/components/schemas/{component(document)}"} for document in tool.documents]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    return {"200": {"description": "The answer.", "content": {"application/json": {"schema": schema}}}, **refusals()}


def refusals() -> Responses:
    """Return the responses of every operation that are problem documents."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/problem"}}}
    return {
        status: {"description": f"{text[0].upper()}{text[1:]}.", "content": content}
        for status, text in REFUSALS.items()
    }


def components(tools: Iterable[Tool]) -> dict[str, Any]:
    """Return the schemas of all documents of the tools; their definitions become components, too."""
    schemas: dict[str, Any] = {"problem": PROBLEM_SCHEMA}
    for document in sorted({document for tool in tools for document in tool.documents}):
        schema = json_schema(document)
        schemas |= {name: _moved(definition) for name, definition in schema.pop("$defs", {}).items()}
        schema.pop("$schema")
        schemas[component(document)] = _moved(schema)
    return schemas


def _moved(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a schema whose references lead to components."""
    if isinstance(schema, dict):
        return {
            key: value.replace("#/$defs/", "#/components/schemas/") if key == "$ref" else _moved(value)
            for key, value in schema.items()
        }
    return [_moved(value) for value in schema] if isinstance(schema, list) else schema
