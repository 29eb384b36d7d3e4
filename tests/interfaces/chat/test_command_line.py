"""The command line of a call has the options that its command takes, and no name in it becomes an option."""

import pytest

from leadline.interfaces.chat.command_line import command_line, shown_command
from leadline.interfaces.cli.command import CONTEXT
from leadline.interfaces.cli.commands import load_command
from leadline.interfaces.tools import tools

VALUES = {
    "phase": "training", "precision": "bf16", "optimizer": "adam", "sharding": "zero3", "quantize": "4bit",
    "network": "100Gb/s", "on": ["local", "T4"], "command": ["python", "train.py"], "jobs": ["a", "b"],
    "values": {"cores": 4}, "vary": {"gpus": [1, 2]}, "risk": 0.05,
}  # fmt: skip
OF_KIND = {"integer": 2, "number": 60.0, "boolean": True, "string": "a"}


def parsed(words):
    """Return the parameters of the command that would run, and their values."""
    command, rest = load_command(words[0]), words[1:]
    if hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    return command.make_context("leadline", list(rest), **CONTEXT).params


def examples():
    """Return each tool with each of its arguments and a value."""
    for tool in tools.__wrapped__(None).values():
        for name, schema in tool.schema["properties"].items():
            yield tool.name, name, VALUES.get(name, OF_KIND.get(schema.get("type")))


@pytest.mark.parametrize(("tool", "name", "value"), list(examples()))
def test_every_argument_of_a_tool_is_taken_by_its_command(tool, name, value):
    arguments = {"command": ["true"]} if tool == "submit" else {"jobs": ["a"]} if tool in ("cancel", "approve") else {}
    arguments |= {"job": "a"} if tool in ("logs", "explain") else {"on": ["T4"]} if tool == "fit" else {}
    subject = ("config.json",) if "workload" in tools(None)[tool].schema["properties"] else ()
    parameters = parsed(command_line(tool, {**arguments, name: value}, subject))
    assert any(given not in (None, (), False) for given in parameters.values())


def test_parameters_of_a_trained_model_are_set_and_varied():
    words = command_line("estimate", {"values": {"cores": 4, "grid": "fine"}, "vary": {"gpus": [1, 2]}}, ("m.npz",))
    assert words == ["estimate", "--set", "cores=4", "--set", "grid=fine", "--vary", "gpus=1,2", "m.npz"]


@pytest.mark.parametrize(
    ("tool", "arguments", "name"),
    [
        ("jobs", {"job": "--watch"}, "--watch"), ("logs", {"job": "--follow", "lines": 3}, "--follow"),
        ("explain", {"job": "-h"}, "-h"), ("cancel", {"jobs": ["--all"]}, "--all"), ("systems", {"name": "-h"}, "-h"),
        ("approve", {"jobs": ["--json"]}, "--json"), ("campaigns", {"name": "--help"}, "--help"),
        ("pipelines", {"name": "--json"}, "--json"),
        ("models", {"name": "--json"}, "--json"), ("history", {"run": "--json"}, "--json"),
    ],
)  # fmt: skip
def test_a_name_that_looks_like_an_option_stays_a_name(tool, arguments, name):
    parameters = parsed(command_line(tool, arguments))
    assert [value for value in parameters.values() if value and name in str(value)]
    assert not any(value is True for value in parameters.values())


@pytest.mark.parametrize(
    ("on", "detached"),
    [({}, True), ({"on": ["Local"]}, True), ({"on": ["Pitzer"]}, False), ({"on": ["local", "a"]}, False)],
)
def test_a_local_job_goes_to_the_plane_as_with_the_tool(on, detached):
    assert (parsed(command_line("submit", {"command": ["true"], **on}))["detach"] is True) is detached


def test_the_user_sees_every_sign_of_an_order_before_agreeing():
    words = ["python", "x.py; rm -rf ~", "\x1b[2K\rleadline submit -- true", "a\nb", "\u202etxt"]
    line = shown_command("submit", {"command": words, "account": "p 1"})
    assert line.isprintable()
    assert line == (
        r"""leadline submit --detach --account 'p 1' -- python 'x.py; rm -rf ~' """
        r"""'\x1b[2K\rleadline submit -- true' 'a\nb' '\u202etxt'"""
    )
