"""Copies of runs' files to tiers behind SSH: what is copied, one at a time, and what is measured and reported."""

import os
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath
from threading import Event

import pytest

from leadline.core.errors import LeadlineError
from leadline.core.pipelines import FileSource, Pipeline, PipelineStage, PipelineTier
from leadline.core.plane import EventKind, Place
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.transport.port import LocalTransport
from leadline.pipelines import tier_files
from leadline.pipelines.journal import PipelineEvent, PipelineJournal
from leadline.pipelines.placement import PlacedTier
from leadline.pipelines.tier_files import TierFiles


class Link:
    """A way to another system that may be blocked, or fail, and counts its copies at once."""

    where = "far"

    def __init__(self):
        self.open, self.error = Event(), None
        self.open.set()
        self.busy = self.most = self.sent = 0

    def __getattr__(self, name):
        return getattr(LocalTransport(), name)

    def send(self, source, target, *, timeout_s):
        self.busy += 1
        self.most = max(self.most, self.busy)
        assert self.open.wait(30.0)
        self.busy -= 1
        if self.error:
            raise self.error
        self.sent += 1
        return LocalTransport().send(source, target, timeout_s=timeout_s)


class World:
    """A pipeline with one stage, whose events have files, and an account on another system."""

    def __init__(self, folder):
        self.home, self.data, self.there = folder / "home", folder / "home" / "season", folder / "there"
        self.data.mkdir(parents=True)
        (self.home / "train.py").write_text("train")
        stage = PipelineStage("train", ("true",), ("images",), ("hpc",), reads=("labels", "absent"), writes=("models",))
        events = {"images": FileSource("*.jpg")}
        self.pipeline = Pipeline("station", str(self.home), str(self.data), {}, events, {"train": stage})
        self.link, self.reports = Link(), []
        self.journal, self.plane = PipelineJournal(self.data), PlaneJournal(folder / "plane.sqlite")
        self.files = TierFiles(
            pipeline=self.pipeline, journal=self.journal, plane=self.plane, report=self.reports.append
        )

    def batch(self, number, *files):
        events = [PipelineEvent("images", file, "2026-05-01", file) for file in files]
        self.journal.add_events(events)
        waiting = self.journal.next_events("train", ["images"], 100)
        batch = replace(self.journal.new_batch("train", waiting, ["images"], "hpc"), number=number)
        self.journal.write_batch(batch)
        write(self.data / "runs" / batch.label / "events.jsonl", "{}")
        return batch

    def tier(self, folder="there"):
        tier = PipelineTier("hpc", "Far:gpu", str(self.there.with_name(folder)))
        return PlacedTier(tier, Place("Far", "gpu"), here=False, transport=self.link)

    def sent(self, batch, placed=None):
        return self.until(lambda: self.files.send(batch.label, batch, placed or self.tier()))

    @staticmethod
    def until(poll, most_s=30.0):
        deadline_s = time.monotonic() + most_s
        while not (answer := poll()):
            assert time.monotonic() < deadline_s, "it never happened"
            time.sleep(0.005)
        return answer

    @property
    def copies(self):
        return [event.details for event in self.plane.events(kinds=[EventKind.STAGED])]


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(tier_files, "RETRY_PAUSES_S", (0.01, 0.03))
    world = World(tmp_path)
    yield world
    world.journal.close()
    world.plane.close()


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("has_links", [True, False])
def test_programs_what_a_stage_reads_and_files_of_events_are_sent_and_nothing_else(world, has_links, monkeypatch):
    for name in ("lib/tools.py", ".git/config", ".env", "__pycache__/train.pyc", "lib/__pycache__/tools.pyc"):
        write(world.home / name, name)
    for name in ("labels/deep/all.csv", "labels/1.jpg", "other/big", "incoming/2.jpg", "incoming/3.jpg"):
        write(world.data / name, name)
    (world.home / "shared.py").symlink_to(world.data / "other" / "big")
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    batch = world.batch(1, "labels/1.jpg", "incoming/2.jpg", "incoming/gone.jpg")
    assert world.sent(batch) == PurePosixPath(world.there)
    assert files_below(world.there) == {
        "home/train.py", "home/lib/tools.py", "home/shared.py", "data/runs/train-1/events.jsonl",
        "data/labels/deep/all.csv", "data/labels/1.jpg", "data/incoming/2.jpg",
    }  # fmt: skip
    assert (world.there / "home" / "shared.py").read_text() == "other/big"
    assert (world.there / "data" / "models").is_dir()
    assert files_below(world.data / ".copies") == set()
    (copy,) = world.copies
    assert (copy["from"], copy["to"], copy["competing"]) == ("local", "Far", 0)
    assert copy["moved_bytes"] == sum(path.stat().st_size for path in world.there.rglob("*") if path.is_file())
    assert copy["elapsed_s"] > 0


def test_only_the_result_and_what_the_stage_writes_come_back(world):
    write(world.data / "labels" / "all.csv", "old")
    batch = world.batch(1, "incoming/1.jpg")
    world.sent(batch)
    write(world.data / "labels" / "all.csv", "newer than the copy there")
    write(world.data / "models" / "mine", "kept")
    write(world.there / "data" / "models" / "weights", "trained")
    write(world.there / "data" / "runs" / "train-1" / "result-1.json", "{}")
    world.until(lambda: world.files.fetch("a", batch, world.tier(), f"{world.there}/data"))
    assert (world.data / "labels" / "all.csv").read_text() == "newer than the copy there"
    assert files_below(world.data / "models") == {"mine", "weights"}
    assert (world.data / "runs" / "train-1" / "result-1.json").read_text() == "{}"
    assert [(copy["from"], copy["to"]) for copy in world.copies] == [("local", "Far"), ("Far", "local")]


def test_a_folder_that_the_run_removed_does_not_hold_its_end_up(world):
    batch = world.batch(1, "incoming/1.jpg")
    world.sent(batch)
    Path(world.there, "data", "models").rmdir()
    assert world.until(lambda: world.files.fetch("a", batch, world.tier(), f"{world.there}/data"))


def test_runs_take_turns_at_a_folder_and_copies_to_other_folders_compete(world):
    first, second = world.batch(1, "incoming/1.jpg"), world.batch(2, "incoming/2.jpg")
    world.link.open.clear()
    for batch in (first, second):
        assert world.files.send(batch.label, batch, world.tier()) is None
    world.until(lambda: world.link.busy)
    assert world.files.count("Far") == 2
    elsewhere = world.batch(3, "incoming/3.jpg")
    assert world.files.send(elsewhere.label, elsewhere, world.tier("elsewhere")) is None
    world.until(lambda: world.link.busy == 2)
    time.sleep(0.1)
    assert world.link.busy == 2
    world.link.open.set()
    world.sent(elsewhere, world.tier("elsewhere"))
    for batch in (first, second):
        world.sent(batch)
    assert world.link.most == 2
    assert world.copies[0]["competing"] == 1
    assert world.files.count("Far") == 0


def test_a_failed_copy_is_made_again_after_ever_longer_pauses_and_reported_once(world):
    batch = world.batch(1, "incoming/1.jpg")
    world.link.error = LeadlineError("a was not completely copied to far:b (Disk quota exceeded): copy it again")
    pauses = set()

    def fail():
        assert world.files.send("a", batch, world.tier()) is None
        pauses.update(pause_s for _, pause_s in world.files._pauses.values())
        return len(pauses) == 3

    world.until(fail)
    assert pauses == {0.01, 0.02, 0.03}
    (told,) = world.reports
    assert told.startswith(
        "run train-1 waits for its files at tier hpc: a was not completely copied to far:b (Disk quota exceeded); "
        "make room there, or give the tier another folder; the next try is in 10.0 ms"
    )
    assert not files_below(world.data / ".copies")
    world.link.error = None
    world.until(lambda: world.files.send("a", batch, world.tier()))
    assert world.copies
    world.link.error = LeadlineError("the cable is cut")
    world.until(lambda: world.files.send("b", batch, world.tier()) or len(world.reports) == 2)
    assert "the cable is cut" in world.reports[1]


def test_an_unforeseen_error_is_not_taken_for_a_failed_copy(world):
    world.link.error = ZeroDivisionError("a fault of the program")
    batch = world.batch(1, "incoming/1.jpg")
    with pytest.raises(ZeroDivisionError):
        world.until(lambda: world.files.send("a", batch, world.tier()))
