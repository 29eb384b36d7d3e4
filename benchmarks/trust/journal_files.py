"""Readers of journals of campaigns and of the local queue, of files from other hosts, and of the user's Python file."""

import base64
import io
import sqlite3
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePosixPath

from benchmarks.trust.job_files import outcomes
from benchmarks.trust.mutations import Form
from benchmarks.trust.readers import Reader, texts
from benchmarks.trust.stored_files import CAMPAIGN
from leadline.app.models.graph_features import read_cached_features
from leadline.app.workloads.model_function import find_framework
from leadline.campaigns.journal import CampaignJournal, campaign_totals
from leadline.core.campaigns import Configuration, PlannedRun
from leadline.core.documents import to_json
from leadline.core.estimate import Interval
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.processes import CompletedProcess
from leadline.core.runs import Scale
from leadline.execution.schedulers.attempt_files import SiteScheduler
from leadline.execution.schedulers.local.submissions import LocalSubmissions
from leadline.execution.schedulers.port import Submission
from leadline.execution.transport.port import LocalTransport
from leadline.execution.transport.ssh import SshTransport

SPEC = JobSpec("net", ("train", "3"), ResourceSpec(cores_per_task=2, walltime_s=60.0), environment={"A": "1"})
PLANNED = PlannedRun(
    "net", Configuration({"epochs": 3}, SPEC.resources), Scale.SCALED_DOWN, forecast_s=Interval(3.0, 2.0, 5.0)
)
SUBMISSION = Submission("k1", SPEC, indices=(0, 1))
NET = """\
import torch
from torch import nn


def build(width=8):
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU())
"""


@cache
def archive() -> tuple[bytes, ...]:
    """Return what a host prints for changed files: an archive of outcomes in base64."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as files:
        for number, content in enumerate(outcomes()):
            entry = tarfile.TarInfo(f"./k{number}.json")
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
    return (base64.encodebytes(target.getvalue()), target.getvalue())


def _answering(text: str) -> Callable[..., CompletedProcess]:
    """Return a process runner whose every command prints a text."""
    return lambda *_, **__: CompletedProcess(0, text, "")


def _read_archive(path: Path) -> object:
    content = path.read_bytes()
    text = content.decode("ascii", "replace") if content[:1].isalnum() else base64.b64encode(content).decode()
    transport = SshTransport("reef", processes=_answering(text), sockets=path.parent)
    return transport.read_changed(PurePosixPath("/runs"), ["k0.json"], since_s=0.0)


def _read_tails(path: Path) -> object:
    transport = LocalTransport(processes=_answering(path.read_bytes().decode("utf-8", "replace")))
    return SiteScheduler("site", PurePosixPath("/"), transport).log_tails(["k1", "k2"], most_bytes=1000)


def _read_campaign_journal(path: Path, table: str, column: str) -> object:
    """Read a journal of a campaign with a damaged document."""
    text = path.read_bytes().decode("utf-8", "replace")
    with CampaignJournal(path.with_suffix(".sqlite")) as journal:
        journal.plan([(PLANNED, SPEC)])
        damage(journal.path, table, column, text)
        return campaign_totals(CAMPAIGN, journal.runs())


def _read_queue(path: Path, table: str, column: str) -> object:
    """Read a local queue with a damaged document."""
    text = path.read_bytes().decode("utf-8", "replace")
    with LocalSubmissions(path.with_suffix(".sqlite")) as queue:
        queue.take(SUBMISSION, {"A": "1"}, now_s=1.0)
        damage(queue.path, table, column, text)
        return queue.in_state(JobState.PENDING), queue.taken(1)


def damage(path: Path, table: str, column: str, text: str) -> None:
    """Put a text into a column of all rows of a table."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (text,))  # noqa: S608 - our own names
    connection.close()


def _document(name: str, room: str, text: str, read: Callable[..., object], table: str, column: str) -> Reader:
    return Reader(name, room, "row.json", Form.JSON, texts(text), lambda path: read(path, table, column), opens=False)


READERS = (
    _document(
        "planned run of a campaign", "campaigns", to_json(PLANNED), _read_campaign_journal, "planned", "document"
    ),
    _document("job of a campaign", "campaigns", to_json(SPEC), _read_campaign_journal, "planned", "spec"),
    _document("job of the local queue", "execution", to_json(SPEC), _read_queue, "job", "spec"),
    _document("outcome in the local queue", "execution", outcomes()[0].decode(), _read_queue, "job", "outcome"),
    _document(
        "submission to the local queue",
        "execution",
        to_json(SUBMISSION, indent=0),
        _read_queue,
        "submission",
        "document",
    ),
    _document("environment in the local queue", "execution", '{"A": "1"}', _read_queue, "submission", "environment"),
    Reader("files of another host", "execution", "answer.txt", Form.BINARY, archive, _read_archive, 2, opens=False),
    Reader(
        "tails of logs",
        "execution",
        "answer.txt",
        Form.TEXT,
        texts("k1.log aGVsbG8=\nk2.log d29ybGQK\n"),
        _read_tails,
        opens=False,
    ),
    Reader(
        "cached features of a trace",
        "app",
        "features.json",
        Form.JSON,
        texts('{"ops": 12.0, "flops": 1e12}'),
        read_cached_features,
    ),
    Reader(
        "Python file of a model", "app", "net.py", Form.TEXT, texts(NET), lambda path: find_framework(path, "build"), 2
    ),
)
