"""Map a question to a tool and its arguments without a language model.

Patterns read the values and names that a question has, then cues in the rest decide for a tool. A question that
no tool answers for certain is refused: a wrong answer is worse than none.
"""

from collections.abc import Callable, Collection
from functools import partial

from leadline.core.frozen import Frozen
from leadline.interfaces.chat import cues
from leadline.interfaces.chat.intent import REFUSED, Learned, learned, likely_tool
from leadline.interfaces.chat.job_calls import (
    Arguments,
    cancel_arguments,
    explain_arguments,
    history_arguments,
    jobs_arguments,
    logs_arguments,
    named_arguments,
    place_arguments,
    submit_arguments,
)
from leadline.interfaces.chat.language import normal
from leadline.interfaces.chat.question import WORKLOAD_TOOLS, Question, ToolCall
from leadline.interfaces.chat.workload_calls import workload_call

LONGEST = 2000
"""Characters of a question; longer ones are texts of another kind, and patterns would take long on them."""
MOST_UNKNOWN = 3
"""Words of a question that may be unknown, or a quarter of them."""
NOT_UNDERSTOOD = (
    "I did not understand this. Ask for the time, memory or cost of a workload, whether it fits, where to run it, or "
    "for systems, devices, jobs, logs, runs, models, campaigns or pipelines."
)


class Refusal(Frozen):
    """Why a question is not answered, as a sentence for its user."""

    why: str


def understand(
    text: str, before: ToolCall | None, systems: Collection[str], model: Learned | None = None
) -> ToolCall | Refusal:
    """Return what a question asks for.

    Args:
        text: The question.
        before: The call of the question before it in the conversation, which it may refer to.
        systems: Names of the systems in the catalog.
        model: What was learned from questions; by default the stored model.
    """
    if len(text) > LONGEST:
        return Refusal(f"This has {len(text):,} characters. Ask in {LONGEST:,} or fewer.")
    model = model or learned()
    if cues.says("injection", text):
        return Refusal("This asks me to leave my rules. I answer with the tools only, and change nothing unasked.")
    question = Question(normal(text), before, systems)
    if why := _why_impossible(question):
        return Refusal(why)
    tool = likely_tool(question, model)
    call = None if tool == REFUSED else _call(tool, question)
    if call is None or _is_contradicted(call, question) or not _is_certain(call, question, model.known):
        return Refusal(NOT_UNDERSTOOD)
    return call


def _call(tool: str, question: Question) -> ToolCall | None:
    """Return the call with its arguments; None if the question lacks one that it needs."""
    if tool in WORKLOAD_TOOLS:
        return workload_call(question, tool)
    readers: dict[str, Callable[[Question], Arguments | None]] = {
        "submit": submit_arguments, "cancel": cancel_arguments, "jobs": jobs_arguments, "logs": logs_arguments,
        "explain": explain_arguments, "history": history_arguments,
        "models": partial(named_arguments, cue="model-name"),
        "campaigns": partial(named_arguments, cue="campaign-name"),
        "pipelines": partial(named_arguments, cue="pipeline-name"),
        "systems": partial(place_arguments, kind="system"), "devices": partial(place_arguments, kind="device"),
    }  # fmt: skip
    arguments = readers[tool](question)
    return None if arguments is None else ToolCall(tool, arguments)


def _why_impossible(question: Question) -> str:
    """Return why no tool can do what the question orders; empty if it orders nothing of the kind."""
    if question.says("quality") and question.has_workload and not question.says("measured"):
        return "I predict time, memory and cost, and not how good a model becomes."
    if question.says("operation") and not (
        question.jobs or question.has_workload or question.says("cancel") or question.follows(*WORKLOAD_TOOLS)
    ):
        return "I do not know how a system is doing today."
    submits = bool(question.command) or question.follows("submit")
    changes = question.follows(*WORKLOAD_TOOLS) and question.has_values
    asks_to_fit = question.has_workload and question.says("fit")
    if question.says("impossible") and not (submits or changes or asks_to_fit or question.says("history")):
        return "None of my tools can do this; I predict, recommend, show, submit and cancel."
    return ""


def _is_contradicted(call: ToolCall, question: Question) -> bool:
    """Tell whether a call turns the question around or leaves a part of it out.

    The question may exclude what the call names, give no order, have a value that the call lacks, or change nothing.
    """
    if cues.says("excluded", question.left_of_request()):
        return True
    if call.tool in WORKLOAD_TOOLS:
        return _lacks_workload_part(call, question)
    if call.tool == "submit":
        return cues.says("no-submit", question.text) or question.says("condition")
    if cues.says("no-at-first", question.text):
        return True
    if call.tool == "cancel":
        return cues.says("no-cancel", question.text) or question.says("condition")
    lists_places = call.tool in ("systems", "devices") and not call.arguments
    return lists_places and not cues.says("places-in-general", question.left_of_request())


def _lacks_workload_part(call: ToolCall, question: Question) -> bool:
    """Tell whether a question about a workload orders or says more than its call, or asks nothing new."""
    before = question.before
    repeats = before is not None and (call.tool, call.arguments) == (before.tool, before.arguments)
    if repeats and not (question.has_workload or question.says(call.tool)):
        return True
    orders = cues.says("no-submit", question.text) or cues.says("order-to-submit", question.text)
    if orders and not any(question.says(tool) for tool in WORKLOAD_TOOLS):
        return True
    return (
        _names_another(question)
        or question.says("lower-bound")
        or cues.says("unread-value", question.left_of_request())
    )


def _names_another(question: Question) -> bool:
    """Tell whether a question names a second workload of the kind of the first, a file or a model of the hub."""
    workload = question.reading.slots.get("workload", "")
    cue = "hub" if cues.pattern("hub").fullmatch(workload) else "file"
    return any(match[0] != workload for match in cues.pattern(cue).finditer(question.reading.text))


def _is_certain(call: ToolCall, question: Question, known: Collection[str]) -> bool:
    """Tell whether nothing in the question speaks against a call.

    The name of a workload is a strong sign. Other questions must consist of words that such questions have, and an
    order must not speak of the consent that it needs.
    """
    if call.tool in WORKLOAD_TOOLS and not (question.values or question.vary):
        return True
    if call.tool in ("systems", "devices"):
        options = set(question.reading.slots) - ({"precision"} if call.tool == "devices" else set())
        lasts = question.spans and not question.says("an-hour")
        if options or lasts or question.budget or question.says("submit"):
            return False
    if call.tool in ("submit", "cancel") and cues.says("consent", question.text):
        return False
    words = question.left_words()
    unknown = [word for word in words if word not in known]
    return len(unknown) <= max(MOST_UNKNOWN, len(words) / 4)
