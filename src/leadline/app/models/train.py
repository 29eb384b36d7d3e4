"""The verb ``train``: fit and compare estimators on measured runs, and keep the best with its card."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from leadline.app import settings
from leadline.app.composition import toolbox, trained_model, user_catalog
from leadline.app.models.graph_features import TraceableCommand, trace_features
from leadline.core.errors import InvalidInput, LeadlineError, MissingExtra, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device
from leadline.core.jobs import JobState
from leadline.core.ports import Catalog
from leadline.core.runs import Run
from leadline.core.workload import ModelKind
from leadline.files.read import exists, read_input
from leadline.history.sqlite import SqliteHistory
from leadline.training.measurements import MEASUREMENTS_SUFFIX, measured_records, read_measurements
from leadline.training.model_card import ModelCard, model_card_markdown
from leadline.training.records import Progress, RunRecord, TrainingOptions, application_name, run_records
from leadline.training.tables import TABLE_SUFFIXES, read_tables
from leadline.uncertainty.metrics import POLICIES

DEFAULT_POLICY = "mape"
FITTING_PACKAGES = ("numpy", "scipy", "sklearn")


@dataclass(frozen=True, slots=True)
class TrainRequest(TrainingOptions):
    """Training options, the runs, and the files to write.

    ``source`` is a campaign, a table of runs or a folder of tables; ``None`` is the whole history. ``graphs`` traces
    the commands of the runs, and adds graph features.
    """

    jobs: int | None = None
    source: str | None = None
    to: Path | None = None
    plots: Path | None = None
    graphs: bool = False


class TrainedFiles(Frozen):
    """Files of a trained model: the model, its card next to it, and the plots."""

    card: ModelCard
    model: Path
    text: Path
    plots: tuple[Path, ...]


def train(request: TrainRequest, *, progress: Progress = lambda *_: None) -> TrainedFiles:
    """Train a model on measured runs, and write it with its card and its plots.

    Raises:
        MissingExtra: scikit-learn, scipy or numpy is not installed, or matplotlib for the plots.
        InvalidInput: the runs cannot be used for training.
        UnknownName: unknown campaign, policy, target or column.
        LeadlineError: a file cannot be written.
    """
    if any(find_spec(name) is None for name in FITTING_PACKAGES):
        raise MissingExtra("leadline train", "train")
    if request.plots is not None and find_spec("matplotlib") is None:
        raise MissingExtra("leadline train --plots", "train")
    if request.policy not in POLICIES:
        raise UnknownName("policy", request.policy, POLICIES)
    if request.to is not None:  # training can take long: a place that cannot be written is refused first
        fix = "name another place with --to"
        with settings.refuse_unwritable(request.to, fix):
            settings.require_writable(request.to if request.to.is_dir() else request.to.parent, fix)
    from leadline.estimators.tabular.registry import ESTIMATORS  # noqa: PLC0415 - numpy loads on use
    from leadline.training.build import TrainingOrigin, build_model  # noqa: PLC0415
    from leadline.training.model import save_model  # noqa: PLC0415

    records, source, command = _records(request, progress)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    origin = TrainingOrigin(source, now, reproduce_command(request), command)
    model, trained = build_model(records, ESTIMATORS, origin, request, progress=progress)
    name = f"{readable_name(model.application).strip('-.') or 'model'}.npz"
    path = request.to or settings.data_dir() / "models" / name
    if exists(path) and path.is_dir():
        path = path / name
    save_model(model, path)
    text = path.with_suffix(".md")
    try:
        text.write_text(model_card_markdown(model.card), encoding="utf-8")
    except OSError as error:
        raise LeadlineError(f"cannot write the card to {text} ({error.strerror})") from error
    plots: tuple[Path, ...] = ()
    if request.plots is not None:
        from leadline.training.plots import draw_all  # noqa: PLC0415 - matplotlib takes half a second to load

        plots = draw_all(model.card, trained, request.plots, progress=progress)
    return TrainedFiles(model.card, path, text, plots)


def list_models() -> tuple[tuple[Path, ModelCard | None, str], ...]:
    """Return the user's models: (file, card or ``None``, reason why it cannot be read)."""
    models: list[tuple[Path, ModelCard | None, str]] = []
    for path in sorted((settings.data_dir() / "models").glob("*.npz")):
        try:
            models.append((path, trained_model(path).card, ""))
        except InvalidInput as error:
            models.append((path, None, str(error)))
    return tuple(models)


def reproduce_command(request: TrainRequest) -> str:
    """Return the command line that trains the same model again."""
    words = ["leadline", "train", *([request.source] if request.source else [])]
    for target in request.targets:
        words += ["--target", target]
    words += ["--policy", request.policy]
    lists = {"--scale": request.scale_features, "--without": request.without, "--categories": request.categories}
    for option, names in lists.items():
        words += [option, ",".join(names)] if names else []
    words += ["--graphs"] if request.graphs else []
    return shlex.join([*words, "--seed", str(request.seed)])


def _records(request: TrainRequest, progress: Progress) -> tuple[Sequence[RunRecord], str, tuple[str, ...]]:
    """Return the records, their source in words, and the application's command if known."""
    device_of, source = cache(partial(find_device, user_catalog())), request.source
    if source is not None and (source.endswith((*TABLE_SUFFIXES, MEASUREMENTS_SUFFIX)) or exists(source)):
        if request.graphs:
            raise InvalidInput(
                f"--graphs traces the commands of runs, but the table {source} has none: leave it out, or "
                "train on a campaign of the history"
            )
        if not exists(source):
            read_input(Path(source))  # its error says what is wrong with the word
        file, targets = Path(source), request.targets or ("elapsed_s",)
        if source.endswith(MEASUREMENTS_SUFFIX):
            return measured_records(read_measurements(file)), file.name, ()
        return read_tables(file, targets=targets, without=request.without, device_of=device_of), file.name, ()
    history_runs = list(SqliteHistory(settings.history_path()).runs())
    runs = [run for run in history_runs if source is None or application_name(run) == source]
    if source is not None and not runs:
        applications = {application_name(run) for run in history_runs}
        fix = "" if applications else "the history is empty; add runs with leadline campaign run or leadline submit"
        raise UnknownName("campaign", source, applications, fix=fix)
    where = f"campaign {source}" if source else "the history"
    from leadline.training.build import infer_command  # noqa: PLC0415 - numpy loads on use

    command = infer_command(runs)
    graphs = _graph_features(runs, command, request.jobs, progress) if request.graphs else {}
    return run_records(runs, device_of=device_of, graph_features=graphs), where, command


def _graph_features(
    runs: Sequence[Run], command: Sequence[str], jobs: int | None, progress: Progress
) -> dict[str, Mapping[str, float]]:
    """Return the graph features of the runs that ended, by run id."""
    if not command:
        raise InvalidInput(
            "--graphs traces the command of every configuration, but these runs have no common "
            "command: leave it out, or run a campaign"
        )
    ended = [run for run in runs if run.state in (JobState.COMPLETED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY)]
    workdir, jobs = str(Path.cwd()), jobs or os.cpu_count() or 1
    commands = [
        TraceableCommand(run.job.command, run.job.workdir or workdir, bool(run.job.resources.gpus_per_node))
        for run in ended
    ]
    features = trace_features(commands, toolbox().sources[ModelKind.COMMAND], jobs=jobs, progress=progress)
    return {run.id: each for run, each in zip(ended, features, strict=True)}


def find_device(catalog: Catalog, name: str) -> Device | None:
    """Return the device of a driver's name (``NVIDIA A100-SXM4-40GB``), or ``None``."""
    try:
        return catalog.device(name)
    except UnknownName:
        return None


def readable_name(text: str) -> str:
    """Return a text as part of a file name."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text)
