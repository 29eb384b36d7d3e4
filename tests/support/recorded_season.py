"""A pipeline with a season in its journal: 100 images in 100 seconds, two retrainings, and three images to review."""

import base64
import json
from dataclasses import replace

from leadline.core.jobs import JobState
from leadline.execution.clock import iso_utc
from leadline.pipelines.journal import PipelineEvent, PipelineJournal
from leadline.pipelines.placement import predict_elapsed_s
from leadline.pipelines.spec import read_pipeline

BEGIN_S = 1_700_000_000.0
LABEL_S, TRAIN_S, CHECK_S, WAIT_S = 2.0, 20.0, 1.0, 0.5
DRIFTS = {4: 40_000.0, 9: 90_000.0}
"""Batch of labels with a drift, and the bytes of labels that the retraining reads."""
PIPELINE = """
[pipeline]
name = "traps"
folder = "season"

[tiers.edge]
device = "Jetson Nano"
cores = 1
[tiers.cloud]
price = "3.60 USD/h"
[tiers.hpc]
price = "7.20 USD/h"

[events.images]
files = "incoming/*.jpg"
[events.drifted]
metric = { stage = "label", name = "drift", above = 0.5 }

[stages.label]
command = "true"
on = "images"
batch = { most = 10, wait = "60 s" }
tier = "edge"
review = { folder = "queue", labels = ["deer", "fox"] }
[stages.train]
command = "true"
on = "drifted"
tier = ["hpc", "cloud"]
reads = ["labels"]
[stages.check]
command = "true"
on = "train"
tier = "edge"
"""


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def record_season(home):
    """Write the pipeline's file and its journal; return the file."""
    file = home / "traps.toml"
    file.write_text(PIPELINE)
    pipeline = read_pipeline(file)
    queue = home / "season" / "queue"
    queue.mkdir(parents=True, exist_ok=True)
    for number in range(1, 4):
        (queue / f"{number}.png").write_bytes(PIXEL)
    entries = [{"id": str(number), "file": f"{number}.png", "label": "deer", "confidence": 0.6} for number in (1, 2, 3)]
    (queue / "queue.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    with PipelineJournal(home / "season") as journal:
        for number in range(1, 101):
            at_s = BEGIN_S + number
            journal.add_events([PipelineEvent("images", str(number), iso_utc(at_s), file=f"incoming/{number}.jpg")])
            if number % 10 == 0:
                batch = number // 10
                metrics = {"drift": float(batch in DRIFTS), "labels": 10.0}
                end_s = _run(journal, pipeline, "label", "edge", at_s, LABEL_S, metrics=metrics, work=10.0)
                if batch in DRIFTS:
                    train = {"accuracy": 0.8 + batch / 100}
                    end_s = _run(journal, pipeline, "train", "hpc", end_s, TRAIN_S, metrics=train, work=DRIFTS[batch])
                    _run(journal, pipeline, "check", "edge", end_s, CHECK_S, work=1.0)
    return file


def _run(journal, pipeline, stage, tier, at_s, elapsed_s, *, work, metrics=None):
    """Record a completed run of all events that wait; return its end."""
    sources = pipeline.stages[stage].on
    events = journal.next_events(stage, sources, 100)
    past = journal.past_runs(stage)
    end_s = at_s + elapsed_s + WAIT_S
    batch = replace(
        journal.new_batch(stage, events, sources, tier), created_at=iso_utc(at_s), ended_at=iso_utc(end_s), work=work,
        elapsed_s=elapsed_s, memory_bytes=1e8, state=JobState.COMPLETED, predicted_s=predict_elapsed_s(past, work),
        why="the only tier of the stage", evidence=(f"{tier}: {elapsed_s} s",),
    )  # fmt: skip
    journal.write_batch(batch)
    journal.end_batch(batch, metrics or {}, pipeline)
    return end_s
