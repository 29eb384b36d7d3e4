"""Answer one call of a tool in a process of its own: ``python -m leadline.interfaces.web.tool_process``.

It reads a ``TaskCall`` from stdin, and prints a ``TaskEvent`` for each step and for the answer; each is a line of JSON.
"""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from leadline.app.background import NICENESS, end_with_input, hear_steps
from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.core.frozen import Frozen
from leadline.interfaces.tools import tools


class TaskCall(Frozen):
    """A call: the tool's name and arguments, the folder of workloads, and whether scripts are allowed."""

    tool: str
    arguments: dict[str, Any]
    folder: str
    scripts: bool


class TaskEvent(Frozen, omit_defaults=True):
    """A step that begins, or the end: the answer as JSON, or why there is none."""

    step: str = ""
    answer: msgspec.Raw = msgspec.Raw()
    error: str = ""


def main() -> None:
    """Answer the call on stdin; end when stdin is closed."""
    # The pages of the same server, and the jobs of this machine, go first.
    os.nice(NICENESS)
    with os.fdopen(os.dup(1), "wb") as pipe:
        os.dup2(2, 1)  # lines that a library prints belong into the server's log

        def send(event: TaskEvent) -> None:
            pipe.write(to_json(event, indent=0).encode() + b"\n")
            pipe.flush()

        line = sys.stdin.buffer.readline()
        if not line:  # it was cancelled while this process started
            return
        call = from_json(line, TaskCall, label="the call")
        end_with_input()
        tool = tools(Path(call.folder), scripts=call.scripts)[call.tool]
        try:
            with hear_steps(lambda step: send(TaskEvent(step))):
                answer = tool.call(call.arguments)
            send(TaskEvent(answer=msgspec.Raw(to_json(answer, indent=0).encode())))
        except LeadlineError as error:
            send(TaskEvent(error=str(error)))


if __name__ == "__main__":
    main()
