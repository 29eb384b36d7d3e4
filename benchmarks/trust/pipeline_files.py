"""Readers of pipelines: the file, the journal in its folder, and the results that runs write."""

from dataclasses import replace
from pathlib import Path

from benchmarks.trust.journal_files import damage
from benchmarks.trust.mutations import Form
from benchmarks.trust.readers import Reader, texts
from leadline.app.pipelines.find import find_pipelines
from leadline.app.pipelines.review import read_review
from leadline.core.documents import to_json
from leadline.core.jobs import JobState
from leadline.core.pipelines import FileSource, Pipeline
from leadline.pipelines.journal import Batch, PipelineEvent, PipelineJournal
from leadline.pipelines.placement import predict_elapsed_s
from leadline.pipelines.runner import read_metrics
from leadline.pipelines.spec import read_pipeline

PIPELINE = """\
[pipeline]
name = "net"
folder = "season"
[tiers.edge]
device = "Jetson Nano"
cores = 1
memory = "1 GiB"
[tiers.cloud]
price = "0.40 USD/h"
[events.images]
mqtt = { broker = "localhost:1883", topic = "traps/+/images" }
[events.uploads]
files = "incoming/*.jpg"
settle = "2 s"
[events.drifted]
metric = { stage = "label", name = "drift", above = 0.5 }
[events.enough]
count = { of = "label.labels", reaches = 500 }
[stages.label]
command = "python label.py"
on = ["images", "uploads"]
batch = { most = 250, wait = "10 s" }
tier = "edge"
review = { folder = "queue", labels = ["deer", "fox"] }
[stages.retrain]
command = ["python", "{home}/train.py"]
on = ["drifted", "enough"]
deadline = "10 min"
budget = "2 USD"
reads = "labels"
"""
QUEUE = {
    "queue.jsonl": '{"id": "7", "file": "7.jpg", "label": "deer", "confidence": 0.6}\n',
    "answers.jsonl": '{"id": "7", "label": "fox", "at": "2026-01-01T00:00:00+00:00"}\n',
}
NOW = "2026-01-01T00:00:00+00:00"
BATCH = Batch("label", 1, ("images",), 0, 1, 1, NOW, "edge", 1.0, state=JobState.COMPLETED, elapsed_s=2.0)
EMPTY = Pipeline("net", "/", "/", {}, {"images": FileSource("*")}, {})


def _read_journal(path: Path, table: str, column: str) -> object:
    """Read a journal of a pipeline with a damaged document."""
    text = path.read_bytes().decode("utf-8", "replace")
    with PipelineJournal(path.parent / f"{path.stem}-journal") as journal:
        journal.add_events([PipelineEvent("images", "1", NOW)])
        journal.end_batch(replace(BATCH, ended_at=NOW), {"drift": 0.5}, EMPTY)
        damage(journal.path, table, column, text)
        past = journal.past_runs("label")
        return [*map(to_json, journal.events_of(BATCH))], predict_elapsed_s(past, 1.0)


def _read_queue(path: Path) -> object:
    """Read the review queue of a stage, with the queued files or the answers damaged."""
    folder = path.parents[2]
    (folder / "net.toml").write_text(PIPELINE)
    (path.parent / "7.jpg").touch()
    for name, line in QUEUE.items():
        if name != path.name:
            (path.parent / name).write_text(line)
    return read_review("net", "label", folder)


READERS = (
    Reader("pipeline file", "pipelines", "pipeline.toml", Form.TOML, texts(PIPELINE), read_pipeline, 3),
    Reader("pipelines of a folder", "app/pipelines", "pipeline.toml", Form.TOML, texts(PIPELINE),
           lambda path: find_pipelines(path.parent)),
    *(
        Reader(f"{name} of a review", "app/pipelines", f"season/queue/{name}", Form.JSON, texts(line), _read_queue)
        for name, line in QUEUE.items()
    ),
    Reader(
        "result of a run", "pipelines", "result.json", Form.JSON, texts('{"metrics": {"drift": 0.7, "n": 3}}'),
        read_metrics,
    ),
    Reader(
        "batch of a pipeline", "pipelines", "row.json", Form.JSON, texts(to_json(BATCH)),
        lambda path: _read_journal(path, "batch", "document"), opens=False,
    ),
    Reader(
        "payload of an event", "pipelines", "row.json", Form.JSON, texts('{"topic": "traps/1/images"}'),
        lambda path: _read_journal(path, "event", "payload"), opens=False,
    ),
)  # fmt: skip
