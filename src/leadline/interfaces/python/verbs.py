"""The verbs of the Python API: estimate, fit, recommend, train, systems, devices.

The words, the nouns and the JSON documents are those of the command line. All verbs are synchronous.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from os import PathLike, fspath
from pathlib import Path
from typing import TypedDict, Unpack

from leadline.app.composition import toolbox, trained_model
from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.estimate.estimate import estimate as estimate_workload
from leadline.app.estimate.recommend import build_constraints
from leadline.app.estimate.recommend import recommend as recommend_workload
from leadline.app.models.question import ModelQuestion, is_model
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput, choose
from leadline.core.estimate import EstimatorChoice
from leadline.core.hardware import Device
from leadline.core.recommendation import RiskWeights
from leadline.core.runs import Value
from leadline.core.systems import System
from leadline.interfaces.documents import estimate_document, model_estimate_document
from leadline.interfaces.python.answers import Estimates, FitReports, Recommendations

Subject = str | PathLike[str] | Sequence[str]
"""A workload: one file (``config.json``, ``model.onnx``, ``train.py:build``, ``job.toml``) or a command as words."""


class WorkloadKeywords(TypedDict, total=False):
    """The options of a workload, named as on the command line; ``leadline estimate --help`` describes each."""

    phase: str
    batch: int
    input: list[str] | str
    seq: int
    seq_max: int
    lengths: str
    generate: int
    paged: bool
    kv_cache_dtype: str
    precision: str
    attention: str
    loss: str
    launch: str
    optimizer: str
    lora: int
    lora_targets: str
    lora_embeddings: bool
    peft: str
    quantize: str
    accumulate: int
    checkpointing: bool
    recompute: str
    compile: bool
    trace_limit: int
    gpus: int
    power_limit: str
    tensor_parallel: int
    no_sequence_parallel: bool
    pipeline_parallel: int
    virtual_stages: int
    context_parallel: int
    context_method: str
    expert_parallel: int
    sharding: str
    shard_group: int
    fusion: str
    overlap: str
    layout: str
    global_batch: int
    network: str
    epochs: float
    steps: int
    samples: int
    bytes_per_sample: int | str
    workers: int
    load_s: float
    held_in_memory: bool
    name: str


def estimate(
    subject: Subject, *, on: str | Sequence[str] = (), estimator: str | None = None,
    values: Mapping[str, Value] | None = None, vary: Mapping[str, Sequence[Value]] | None = None,
    **options: Unpack[WorkloadKeywords],
) -> Estimates:  # fmt: skip
    """Predict time, memory and cost without running the workload.

    Args:
        subject: A file that describes a workload, a command as a list of words, or a model that ``train`` wrote.
        on: Systems, ``SYSTEM:PARTITION``, devices or ``local``; empty for every partition of the catalog.
        estimator: Estimator of step time; the most accurate one for this kind of job by default.
        values: Values of the application's parameters, for a trained model.
        vary: Values to try of each parameter, for a trained model.
        **options: Options of the workload, such as ``batch=4`` or ``epochs=10``.

    Raises:
        LeadlineError: The workload, a place or an option cannot be used; the message names the fix.
    """
    words, places = _words(subject), _places(on)
    question = _model_question(words, values, vary, options)
    if question is None:
        choice = None if estimator is None else choose("estimator", estimator, EstimatorChoice)
        answer = estimate_workload(read_workload(words, WorkloadOptions(**options)), toolbox(choice), on=places)
        document = estimate_document(answer)
        return Estimates(answer.workload.name, answer.estimates, (), answer.notes, answer.left_out, document)
    from leadline.app.models.predict import estimate_with_model  # noqa: PLC0415 - numpy loads when a model is used

    if estimator is not None:
        raise InvalidInput(f"estimator={estimator!r} prices steps, but {question.model} is a trained model: omit it")
    reply = estimate_with_model(question, trained_model(question.model), toolbox(), on=places)
    document = model_estimate_document(reply)
    return Estimates(reply.application, reply.estimates, reply.parameters, reply.notes, reply.left_out, document)


def fit(
    subject: Subject, *, on: str | Sequence[str], risk: float = DEFAULT_RISK, changes: bool = True,
    timeline: bool = False, **options: Unpack[WorkloadKeywords],
) -> FitReports:  # fmt: skip
    """Predict whether a workload fits into memory, and what would make it fit.

    Args:
        subject: A file that describes a workload, or a command as a list of words.
        on: Systems, ``SYSTEM:PARTITION``, devices or ``local``.
        risk: Accepted probability of running out of memory, between 0 and 1.
        changes: Whether to look for changes that make it fit, and for the largest batch.
        timeline: Whether to include the memory of a GPU over one step.
        **options: Options of the workload.

    Raises:
        LeadlineError: The workload, a place or an option cannot be used; the message names the fix.
    """
    from leadline.app.estimate.fit import fit as fit_workload  # noqa: PLC0415 - each verb loads when it is called

    workload = read_workload(_words(subject), WorkloadOptions(**options))
    reports = fit_workload(workload, toolbox(), on=_places(on), risk=risk, changes=changes, picture=timeline)
    return FitReports(workload.name, tuple(reports))


def recommend(
    subject: Subject, *, on: str | Sequence[str] = (), deadline: str | timedelta | None = None,
    budget: float | None = None, currency: str = "USD", risk: float = DEFAULT_RISK,
    weights: RiskWeights | None = None, waits: str | Sequence[str] = (), values: Mapping[str, Value] | None = None,
    vary: Mapping[str, Sequence[Value]] | None = None, **options: Unpack[WorkloadKeywords],
) -> Recommendations:  # fmt: skip
    """Recommend systems, partitions and requests under a deadline, a budget and a risk.

    Args:
        subject: A file that describes a workload, a command as a list of words, or a model that ``train`` wrote.
        on: Systems or ``SYSTEM:PARTITION``; empty for the whole catalog.
        deadline: Time until the result is wanted: a text such as ``12h``, or a ``timedelta``.
        budget: Largest cost, in ``currency``.
        currency: Unit of the budget: ``USD`` or a site's own unit.
        risk: Accepted probability of exceeding a limit, between 0 and 1.
        weights: Cost of a killed hour and of an unused hour, in used hours.
        waits: Job accounting to predict queue waits from: ``SYSTEM`` or ``SYSTEM=FILE``.
        values: Values of the application's parameters, for a trained model.
        vary: Values to try of each parameter, for a trained model.
        **options: Options of the workload.

    Raises:
        LeadlineError: The workload, a place or an option cannot be used; the message names the fix.
    """
    words, places, accounting = _words(subject), _places(on), _places(waits)
    constraints = build_constraints(deadline, budget, currency, risk, weights or RiskWeights())
    question = _model_question(words, values, vary, options)
    if question is None:
        workload = read_workload(words, WorkloadOptions(**options))
        answer = recommend_workload(workload, toolbox(), constraints, on=places, waits=accounting)
        return Recommendations(workload.name, answer)
    from leadline.app.models.predict import recommend_with_model  # noqa: PLC0415 - numpy loads when a model is used

    model = trained_model(question.model)
    answer = recommend_with_model(question, model, toolbox(), constraints, on=places, waits=accounting)
    return Recommendations(str(question.model), answer)


def train(
    source: str | PathLike[str] | None = None, *, targets: Sequence[str] = (), policy: str = "mape",
    scale: Sequence[str] = (), without: Sequence[str] = (), categories: Sequence[str] = (),
    to: str | PathLike[str] | None = None, seed: int = 0, jobs: int | None = None, graphs: bool = False,
) -> Path:  # fmt: skip
    """Train a model on measured runs; return its file, which ``estimate`` and ``recommend`` accept.

    Args:
        source: A campaign, a table of runs (CSV), a folder of tables, or a file of ``leadline measure``; the whole
            history by default.
        targets: Metrics to predict; the walltime and the measured memory by default.
        policy: How the estimator is chosen: ``mape``, ``mae``, ``wtm``, ``pinball`` or ``cost``.
        scale: Features that carry scale; those larger at full scale by default.
        without: Features to leave out.
        categories: Features whose numbers are names.
        to: File of the model; ``models/NAME.npz`` in the data folder by default.
        seed: Seed of the splits and the fits.
        jobs: Processes that fit; one for each core by default.
        graphs: Whether to trace the runs' commands for features of their op graphs.

    Raises:
        LeadlineError: The runs cannot be learned from; the message names the fix.
    """
    from leadline.app.models.train import TrainRequest  # noqa: PLC0415 - each verb loads when it is called
    from leadline.app.models.train import train as train_model  # noqa: PLC0415

    request = TrainRequest(
        tuple(targets), policy, tuple(scale), tuple(without), tuple(categories), seed, jobs,
        None if source is None else fspath(source), None if to is None else Path(to), graphs=graphs,
    )  # fmt: skip
    return train_model(request).model


def systems() -> tuple[System, ...]:
    """Return the systems of the catalog."""
    return tuple(toolbox().catalog.systems())


def devices() -> tuple[Device, ...]:
    """Return the devices of the catalog, your own calibrated ones first."""
    return tuple(toolbox().catalog.devices())


def _words(subject: Subject) -> list[str]:
    if isinstance(subject, str):
        return [subject]
    return [fspath(subject)] if isinstance(subject, PathLike) else [fspath(word) for word in subject]


def _places(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _model_question(
    words: Sequence[str], values: Mapping[str, Value] | None, vary: Mapping[str, Sequence[Value]] | None,
    options: WorkloadKeywords,
) -> ModelQuestion | None:  # fmt: skip
    """Return the question to a trained model; None if the subject is a workload."""
    if len(words) != 1 or not is_model(words[0]):
        if values or vary:
            raise InvalidInput(f"values and vary are for a trained model, and {words[0]} is none: omit them")
        return None
    if options:
        option = next(iter(options))
        raise InvalidInput(f"{option} describes a workload; for a trained model write values={{{option!r}: …}}")
    return ModelQuestion(
        Path(words[0]),
        tuple(f"{name}={value}" for name, value in (values or {}).items()),
        tuple(f"{name}={','.join(map(str, tried))}" for name, tried in (vary or {}).items()),
    )
