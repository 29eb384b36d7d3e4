"""The tools: the verbs as a web page, a chat and an assistant call them, with flat arguments and a JSON document.

The workload's arguments, their limits and descriptions come from its options; nothing is described twice. A tool that
acts (``submit``, ``cancel``, ``approve``) is called only after the user has agreed outside the model. The caller sees
to that.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from leadline.app.campaigns.runs import all_campaigns, campaign_status, find_campaign_folder
from leadline.app.composition import trained_model, user_catalog
from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.jobs.event_log import read_event_log
from leadline.app.jobs.history import list_runs, show_run
from leadline.app.jobs.job_status import job_statuses
from leadline.app.jobs.journal import approve_jobs, cancel_jobs, find_job
from leadline.app.jobs.logs import LOG_LINES, last_lines, select_attempt
from leadline.app.jobs.plane_options import PlaneOptions
from leadline.app.pipelines.report import list_pipelines, pipeline_season
from leadline.app.workloads.find import find_subject
from leadline.app.workloads.options import OPTION_TABLES, WorkloadOptions
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.interfaces import documents
from leadline.interfaces.python.jobs import submit
from leadline.interfaces.python.verbs import estimate, fit, recommend

Document = dict[str, Any]

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
"""An argument as text; 4,096 characters is the longest path of Linux."""
Name = Annotated[str, Meta(min_length=1, max_length=255, pattern="^[^/\\x00]+$")]
"""A name in the user's data folder, and no path out of it."""
Texts = Annotated[list[Text], Meta(max_length=100)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Positive = Annotated[float, Meta(gt=0, le=1e15)]
Seconds = Annotated[float, Meta(gt=0, le=1e10)]
"""A span of time of at most 300 years."""
Share = Annotated[float, Meta(gt=0, lt=1)]

WORKLOAD_HELP = (
    "What to run: a file such as config.json, model.onnx or job.toml, a model in the Hugging Face cache such as "
    "mistralai/Mistral-7B-v0.1, timm:resnet50, or a trained model."
)
PLACES_HELP = "Places, the preferred one first: local, SYSTEM:PARTITION, slurm or slurm:PARTITION. Default: local."

FILES_ONLY = ("name", "input", "lengths", "load_s", "bytes_per_sample", "held_in_memory", "compile", "trace_limit")
"""Options of a workload that the tools leave to its file and to the command line."""


class Tool(Frozen):
    """A verb with its arguments.

    Attributes:
        name: name of the tool, and its path in the REST API.
        summary: what it answers, in one sentence for people and models.
        arguments: type of its arguments; those that were not given are ``UNSET``.
        answer: takes the arguments that were given, and returns a JSON document.
        documents: possible schemas of that document, keys of ``interfaces.json_schemas.DOCUMENTS``.
        acts: it changes something, so that the user must agree first.
    """

    name: str
    summary: str
    arguments: type[msgspec.Struct]
    answer: Callable[..., Document]
    documents: tuple[str, ...]
    acts: bool = False

    @property
    def schema(self) -> Document:
        """Return the JSON Schema (2020-12) of the arguments, an object without references."""
        _, definitions = msgspec.json.schema_components([self.arguments])
        return {key: value for key, value in definitions[self.arguments.__name__].items() if key != "title"}

    def call(self, arguments: Mapping[str, Any]) -> Document:
        """Check the arguments and return the answer.

        Raises:
            InvalidInput: an argument is unknown, missing, or of the wrong type or size.
            LeadlineError: the verb cannot answer; the message names the fix.
        """
        return self.answer(**self.check(arguments))

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that were given, converted to their types; ``InvalidInput`` as in ``call``."""
        try:
            checked = msgspec.convert(dict(arguments), self.arguments)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"the arguments of {self.name} cannot be used: {_in_words(str(error))}") from error
        given = msgspec.structs.asdict(checked).items()
        return {name: value for name, value in given if value is not UNSET}


def _in_words(problem: str) -> str:
    """Return a message of msgspec with the argument in front: ``batch: expected `int` >= 1``."""
    text, _, place = problem.partition(" - at `$.")
    return f"{place.removesuffix('`')}: {text[0].lower()}{text[1:]}" if place else f"{text[0].lower()}{text[1:]}"


def _workload_fields() -> dict[str, tuple[Any, str]]:
    """Return the options of a workload as arguments: name → type and description."""
    fields: dict[str, tuple[Any, str]] = {}
    for field in msgspec.structs.fields(WorkloadOptions):
        if field.name in FILES_ONLY:
            continue
        option = OPTION_TABLES.options[field.name]
        (kind,) = (kind for kind in get_args(field.type) if kind is not NoneType)
        if kind in (int, float):
            kind = Annotated[kind, Meta(ge=kind(option.least or 0), le=kind(option.most or 1e15))]
        fields[field.name] = (Text if kind is str else kind, f"{option.help} Default: {option.default}.")
    return fields


def _arguments(
    name: str, required: Mapping[str, tuple[Any, str]], optional: Mapping[str, tuple[Any, str]]
) -> type[msgspec.Struct]:
    """Return the type of a tool's arguments."""
    return msgspec.defstruct(
        f"{name.title()}Arguments",
        [
            *((field, Annotated[kind, Meta(description=text)]) for field, (kind, text) in required.items()),
            *(
                (field, Annotated[kind, Meta(description=text)] | UnsetType, UNSET)
                for field, (kind, text) in optional.items()
            ),
        ],
        forbid_unknown_fields=True, frozen=True, kw_only=True,
    )  # fmt: skip


@cache
def tools(folder: Path, *, scripts: bool = False) -> dict[str, Tool]:
    """Return the tools by name.

    Args:
        folder: Folder whose files may be named as workloads.
        scripts: Whether a script may be named, which is traced in the sandbox.
    """
    workload = {"workload": (Text, WORKLOAD_HELP)}
    options = _workload_fields()
    places = {"on": (Texts, "Where: SYSTEM, SYSTEM:PARTITION, a device, or local. Default: the whole catalog.")}
    values = {
        "values": (dict[str, str | int | float], "Parameters of a trained model: name → value."),
        "vary": (dict[str, list[str | int | float]], "Values to try of each parameter of a trained model."),
    }
    risk = {"risk": (Share, f"Accepted probability of exceeding a limit. Default: {DEFAULT_RISK:g}.")}
    job = {"job": (Text, "Key of the job or its beginning, its name, or its id at the scheduler.")}
    verbs = _Verbs(folder, scripts=scripts)
    table = [
        Tool("estimate", "Predict time, memory and cost of a job on one place, on several, or on all.",
             _arguments("estimate", workload, {**places, **values, **options}), verbs.estimate,
             (documents.ESTIMATE, documents.ESTIMATES)),
        Tool("fit", "Check whether a job fits into memory, and find changes that would make it fit.",
             _arguments("fit", workload, {
                 **places, **risk, "timeline": (bool, "Include the memory of a GPU over one step."), **options,
             }), verbs.fit, (documents.FIT, documents.FITS)),
        Tool("recommend", "Choose a system and a configuration under a deadline, a budget and a risk.",
             _arguments("recommend", workload, {
                 **places, "deadline_s": (Seconds, "Seconds until the result is wanted. Default: none."),
                 "budget": (Positive, "Largest cost, in `currency`. Default: none."),
                 "currency": (Text, "Unit of the budget: USD or a site's own unit. Default: USD."),
                 **risk, **values, **options,
             }), verbs.recommend, (documents.RECOMMENDATION,)),
        Tool("systems", "List the systems, or show one with its partitions, limits, prices and sources.",
             _arguments("systems", {}, {"name": (Text, "One system.")}),
             _systems, (documents.SYSTEM, documents.SYSTEMS)),
        Tool("devices", "List the devices, or show every figure of one with its source.",
             _arguments("devices", {}, {"name": (Text, "One device.")}),
             _devices, (documents.DEVICE, documents.DEVICES)),
        Tool("jobs", "List the user's jobs, or show one: state, progress, expected end, cost.",
             _arguments("jobs", {}, {
                 "job": job["job"], "all": (bool, "Include jobs that have ended."),
                 "limit": (Count, "Show at most so many, the newest."),
             }), _jobs, (documents.JOBS,)),
        Tool("logs", "Show the end of the output of a job.",
             _arguments("logs", job, {
                 "lines": (Annotated[int, Meta(ge=1, le=10_000)], f"Last lines. Default: {LOG_LINES}."),
                 "attempt": (Count, "Number of the attempt. Default: the current one."),
             }), _logs, (documents.LOGS,)),
        Tool("explain", "Show the event log of a job: every decision with its evidence, and why it waits or failed.",
             _arguments("explain", job, {"all": (bool, "Include all progress reports and decisions to keep the job.")}),
             _explain, (documents.STORY,)),
        Tool("history", "List past runs with predicted and measured values, or show one.",
             _arguments("history", {}, {"run": (Text, "Id of one run."), "limit": (Count, "The newest so many.")}),
             _history, (documents.RUN, documents.HISTORY)),
        Tool("models", "List the trained models, or show the card of one: its data, errors, coverage and drift.",
             _arguments("models", {}, {"name": (Name, "One model.")}),
             _models, (documents.MODEL_CARD, documents.MODELS)),
        Tool("campaigns", "Show the status of all campaigns, or one with its runs.",
             _arguments("campaigns", {}, {"name": (Name, "One campaign.")}), _campaigns,
             (documents.CAMPAIGN, documents.CAMPAIGNS)),
        Tool("pipelines", "List the pipelines, or show the season of one: runs predicted and measured, metrics, costs.",
             _arguments("pipelines", {}, {"name": (Name, "One pipeline.")}), verbs.pipelines,
             (documents.PIPELINE_SEASON, documents.PIPELINES)),
        Tool("submit", "Submit a job to the plane, which runs and manages it; the user must agree.",
             _arguments("submit", {"command": (Annotated[Texts, Meta(min_length=1)], "The command as words.")}, {
                 "on": (Texts, PLACES_HELP),
                 "gpus": options["gpus"], "nodes": (Count, "Nodes of the job."), "cores": (Count, "Cores per node."),
                 "memory_bytes": (Annotated[int, Meta(ge=1, le=2**60)], "Memory per node. Default: predicted."),
                 "time_s": (Seconds, "Time limit in seconds. Default: predicted."),
                 "account": (Text, "Project to charge."), "name": (Text, "Name of the job."),
                 "resumes": (bool, "The command resumes from its own checkpoint."),
                 "attempts": (Count, "Most submissions. Default: 4."),
             }), _submit, (documents.JOBS,), acts=True),
        Tool("cancel", "Cancel waiting or running jobs; the user must agree.",
             _arguments("cancel", {}, {
                 "jobs": (Annotated[Texts, Meta(min_length=1)], "Keys or names of jobs."),
                 "all": (bool, "All jobs that have not ended, instead of jobs."),
             }), _cancel,
             (documents.JOBS,), acts=True),
        Tool("approve", "Let a prediction restart running jobs with a larger request; the user must agree.",
             _arguments("approve", {"jobs": (Annotated[Texts, Meta(min_length=1)], "Keys or names of jobs.")}, {}),
             _approve, (documents.JOBS,), acts=True),
    ]  # fmt: skip
    return {tool.name: tool for tool in table}


class _Verbs(Frozen):
    """The verbs that take a workload or a pipeline, with the folder that it may come from."""

    folder: Path
    scripts: bool

    def estimate(self, workload: str, **options: Any) -> Document:  # noqa: ANN401 - checked by the tool
        return estimate(self._find(workload), **options).to_dict()

    def fit(self, workload: str, **options: Any) -> Document:  # noqa: ANN401 - checked by the tool
        if not options.get("on"):
            raise InvalidInput("on is missing: name a device, a system or local to fit the job on")
        return fit(self._find(workload), **options).to_dict()

    def recommend(self, workload: str, deadline_s: float | None = None, **options: Any) -> Document:  # noqa: ANN401 - checked by the tool
        deadline = None if deadline_s is None else timedelta(seconds=deadline_s)
        return recommend(self._find(workload), deadline=deadline, **options).to_dict()

    def pipelines(self, name: str | None = None) -> Document:
        if name is None:
            return to_document(list_pipelines(self.folder), documents.PIPELINES)
        return to_document(pipeline_season(name, self.folder), documents.PIPELINE_SEASON)

    def _find(self, workload: str) -> Sequence[str]:
        return find_subject(workload, self.folder, scripts=self.scripts)


def _systems(name: str | None = None) -> Document:
    catalog = user_catalog()
    return (
        to_document({"systems": catalog.systems()}, documents.SYSTEMS)
        if name is None
        else to_document(catalog.system(name), documents.SYSTEM)
    )


def _devices(name: str | None = None) -> Document:
    catalog = user_catalog()
    return (
        to_document({"devices": catalog.devices()}, documents.DEVICES)
        if name is None
        else to_document(catalog.device(name), documents.DEVICE)
    )


def _jobs(job: str | None = None, *, all: bool = False, limit: int | None = None) -> Document:  # noqa: A002 - as the option
    return to_document({"jobs": job_statuses([job] if job else (), all_jobs=all, limit=limit)}, documents.JOBS)


def _logs(job: str, lines: int = LOG_LINES, attempt: int | None = None) -> Document:
    planned = find_job(job)
    selected = select_attempt(planned, attempt)
    return documents.logs_document(planned.key, selected, last_lines(selected, lines) if selected else ())


def _explain(job: str, *, all: bool = False) -> Document:  # noqa: A002 - as the option
    return to_document(read_event_log(job, full=all), documents.STORY)


def _history(run: str | None = None, limit: int | None = None) -> Document:
    return documents.run_document(show_run(run)) if run else to_document({"runs": list_runs(limit)}, documents.HISTORY)


def _models(name: str | None = None) -> Document:
    if name is None:
        return documents.models_document()
    return to_document(trained_model(Path(name)).card, documents.MODEL_CARD)


def _campaigns(name: str | None = None) -> Document:
    if name is None:
        return to_document({"campaigns": all_campaigns()}, documents.CAMPAIGNS)
    return to_document(campaign_status(find_campaign_folder(name, None)), documents.CAMPAIGN)


def _submit(
    command: Sequence[str], on: Sequence[str] = ("local",), memory_bytes: int | None = None,
    time_s: float | None = None, attempts: int | None = None, *, resumes: bool = False, **request: Any,  # noqa: ANN401
) -> Document:  # fmt: skip
    options = PlaneOptions(attempts=attempts, resumes=resumes)
    memory = None if memory_bytes is None else f"{memory_bytes} B"
    time = None if time_s is None else timedelta(seconds=time_s)
    handle = submit(tuple(command), on=on, memory=memory, time=time, options=options, **request)
    return to_document({"jobs": [handle.status()]}, documents.JOBS)


def _approve(jobs: Sequence[str]) -> Document:
    return to_document({"jobs": job_statuses([job.key for job in approve_jobs(jobs)])}, documents.JOBS)


def _cancel(jobs: Sequence[str] = (), *, all: bool = False) -> Document:  # noqa: A002 - as the option
    if bool(jobs) == all:
        raise InvalidInput("the arguments of cancel cannot be used: give either jobs, or all as true")
    return to_document({"jobs": job_statuses([job.key for job in cancel_jobs(jobs)])}, documents.JOBS)
