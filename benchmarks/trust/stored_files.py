"""Readers of the files that Leadline itself writes and later trusts: models, adaptations, waits, history, campaigns."""

import random
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from benchmarks.trust.mutations import Form, zipped
from benchmarks.trust.readers import Reader
from leadline.app.models.retrain import read_rejected_refits
from leadline.campaigns.folder import read_stored_campaign
from leadline.core.campaigns import Campaign, Parameter, ParameterKind, Range
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.queues import AccountedJob
from leadline.core.runs import Measurement, Run, Scale
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationModels
from leadline.files.arrays import read_members
from leadline.files.read import read_input
from leadline.history.sqlite import SqliteHistory
from leadline.training.adapted_steps import (
    ADAPTED_SCHEMA,
    AdaptedCard,
    AdaptedRecord,
    AdaptedSteps,
    AdaptedWholeSteps,
    read_adapted_steps,
    save_adapted_steps,
)
from leadline.training.application_correction import FinishedRun, fit_correction, read_correction, save_correction
from leadline.training.array_files import keep_cached, load_cached
from leadline.training.decoder_steps import shipped_step_model
from leadline.training.model import DIGEST, digest_of, load_model, save_model
from leadline.training.queue_wait import QueueWaitModel, fit_queue_wait_model
from leadline.training.records import TrainingOptions, run_records
from leadline.training.shipped_models import shipped_op_utilization
from leadline.training.step_adaptation import AdaptedCoefficients
from leadline.uncertainty.drift import PredictionOutcome

MOMENT = "2026-01-01T00:00:00+00:00"
CAMPAIGN = Campaign(
    "net",
    ("train", "{epochs}"),
    (Parameter("epochs", ParameterKind.INTEGER, Range(1, 3), Range(10, 60)),),
    cores=(1, 2),
    workdir="/",
    environment={"A": "1"},
)


def made_run(number: int) -> Run:
    """Return a run of an application whose walltime is nearly linear in its epochs."""
    epochs = 1 + number % 8
    elapsed_s = (2.0 + 3.0 * epochs) * (1 + 0.01 * (number % 3))
    return Run(
        f"{number:012x}",
        JobSpec("net", ("net",), ResourceSpec(cores_per_task=1), partition="cpu"),
        JobState.COMPLETED,
        f"2026-01-01T00:00:{number:09d}",
        scale=Scale.FULL_SCALE if epochs > 5 else Scale.SCALED_DOWN,
        measured={"elapsed_s": Measurement(elapsed_s, "s", "made")},
        parameters={"epochs": epochs},
    )


def _file_of(name: str, write: Callable[[Path], object]) -> bytes:
    """Return the content of a file that a function writes."""
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        path = Path(folder, name)
        write(path)
        return path.read_bytes()


@cache
def models() -> tuple[bytes, ...]:
    """Return a trained model, as written and without its seal."""
    from leadline.estimators.tabular.registry import ESTIMATORS  # noqa: PLC0415 - scikit-learn loads on use
    from leadline.training.build import TrainingOrigin, build_model  # noqa: PLC0415

    records = run_records([made_run(number) for number in range(48)])
    origin = TrainingOrigin("runs.csv", MOMENT, "leadline train runs.csv", ("net",))
    chosen = {name: ESTIMATORS[name] for name in ("linear", "scaling_law")}
    model, _ = build_model(records, chosen, origin, TrainingOptions(targets=("elapsed_s",)))
    content = _file_of("net.npz", lambda path: save_model(model, path))
    return content, resealed(read_members(content, "net.npz"))


def resealed(members: Mapping[str, bytes]) -> bytes:
    """Return a model whose digest fits its members, so that their damage reaches the estimators."""
    rest = {name: content for name, content in members.items() if name != DIGEST}
    return zipped({**rest, DIGEST: digest_of(rest).encode()})


def _read_resealed(path: Path) -> object:
    """Load a damaged model after its digest is made to fit the damage."""
    with suppress(InvalidInput):  # an archive that cannot be unpacked is read as it is
        path.write_bytes(resealed(read_members(read_input(path), path.name)))
    return load_model(path)


@cache
def corrections() -> tuple[bytes, ...]:
    """Return a correction fitted to runs."""
    draw = random.Random(1)  # noqa: S311 - an input to repeat
    outcomes = [
        FinishedRun(
            PredictionOutcome(Interval(10.0, 5.0, 20.0), 20.0 * (1 + 0.1 * draw.random()), censored=False),
            f"2026-01-01T00:00:{number:02d}",
        )
        for number in range(40)
    ]
    correction, _ = fit_correction(outcomes, ("net", "elapsed_s", "roofline"), MOMENT)
    if correction is None:
        raise ValueError("these runs must give a correction")
    return (_file_of("net.npz", lambda path: save_correction(correction, path)),)


@cache
def adaptations() -> tuple[bytes, ...]:
    """Return adapted steps with a factor alone, and with the shipped operator and step models."""
    record = AdaptedRecord(
        group=None,
        channels_last=False,
        estimator="roofline",
        by_law=False,
        factor=1.5,
        error=0.05,
        before=0.3,
        spread=0.04,
        runs=6,
        source="steps.csv",
        made_on="2026-01-01",
    )
    whole = AdaptedWholeSteps(
        estimator="training-step model", launch_s=3e-5, error=0.1, before=0.3, spread=0.2, runs=5, source="steps.csv",
        made_on="2026-01-01",
    )  # fmt: skip
    card = AdaptedCard(schema=ADAPTED_SCHEMA, device="A100 SXM4 80GB", records=(record,), whole_steps=whole)
    model = shipped_step_model()
    coefficients = AdaptedCoefficients(model.theta, model.covariance, 0.15, model.least, model.most)
    models = shipped_op_utilization().models
    laws = OpUtilizationModels({setting: models[setting] for setting in sorted(models)[:1]})
    return tuple(
        _file_of("a100.npz", partial(save_adapted_steps, adapted))
        for adapted in (AdaptedSteps(card), AdaptedSteps(card, laws, coefficients))
    )


@cache
def wait_models() -> tuple[bytes, ...]:
    """Return the cache of a wait model."""
    jobs = [
        AccountedJob(
            str(number),
            1e6 + 60 * number,
            started_s=1e6 + 60 * number + 30 * (number % 7),
            ended_s=1e6 + 60 * number + 1000,
            user="ann",
            partition="batch",
            walltime_s=3600.0,
        )
        for number in range(260)
    ]
    model = fit_queue_wait_model(jobs, 1e6 + 60 * 300)
    return (_file_of("reef.npz", lambda path: keep_cached(path, model.dump())),)


@cache
def histories() -> tuple[bytes, ...]:
    """Return a history of a few runs."""

    def write(path: Path) -> None:
        SqliteHistory(path).add_all(made_run(number) for number in range(3))
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()

    return (_file_of("history.sqlite", write),)


@cache
def run_documents() -> tuple[bytes, ...]:
    """Return the documents of runs, as the history holds them."""
    return tuple(to_json(made_run(number), indent=0).encode() for number in range(2))


def _read_run(path: Path) -> object:
    """Read a run with a damaged document from a sound history."""
    history = SqliteHistory(path.with_name("history.sqlite"))
    history.path.write_bytes(histories()[0])
    connection = sqlite3.connect(history.path)
    with connection:
        connection.execute("UPDATE run SET document = ?", (path.read_bytes().decode("utf-8", "replace"),))
    connection.close()
    return run_records(list(history.runs()))


def _read_campaign(path: Path) -> object:
    return read_stored_campaign(path.parent)


def _read_waits(path: Path) -> object:
    return load_cached(path, QueueWaitModel.load)


READERS = (
    Reader("trained model", "training", "net.npz", Form.ZIP, models, load_model, 3),
    Reader(
        "trained model, digest made to fit", "training", "net.npz", Form.ZIP, lambda: models()[1:], _read_resealed, 4
    ),
    Reader("correction of an application", "training", "net.npz", Form.ZIP, corrections, read_correction, 2),
    Reader("adapted steps", "training", "a100.npz", Form.ZIP, adaptations, read_adapted_steps, 2),
    Reader("cached waits", "training", "reef.npz", Form.ZIP, wait_models, _read_waits, 2),
    Reader(
        "history", "history", "history.sqlite", Form.BINARY, histories, lambda path: list(SqliteHistory(path).runs()), 1
    ),
    Reader("run of the history", "history", "run.json", Form.JSON, run_documents, _read_run, 2, opens=False),
    Reader(
        "stored campaign",
        "campaigns",
        "campaign.json",
        Form.JSON,
        lambda: (to_json(CAMPAIGN).encode(),),
        _read_campaign,
        2,
    ),
    Reader(
        "rejected refits",
        "app",
        "learned.json",
        Form.JSON,
        lambda: (b'{"schema": "leadline.learned/1", "runs": {"a": 3}}',),
        read_rejected_refits,
        1,
    ),
)
