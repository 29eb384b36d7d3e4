"""The journal of a pipeline: each event once, in one batch of each of its stages."""

from dataclasses import replace

import pytest

from leadline.core.jobs import JobState
from leadline.core.pipelines import CountSource, FileSource, MetricSource, Pipeline, PipelineStage
from leadline.pipelines.journal import PipelineEvent, PipelineJournal

NOW = "2026-11-28T00:00:00.000+00:00"
STAGES = {
    "label": PipelineStage("label", ("true",), ("images",), ("here",), most=3),
    "retrain": PipelineStage("retrain", ("true",), ("drifted", "enough"), ("here",)),
}
PIPELINE = Pipeline(
    "station", "/", "/", {},
    {"images": FileSource("*"), "drifted": MetricSource("label", "drift", 0.5, above=True),
     "enough": CountSource("images", None, 4), "plenty": CountSource("label", "labels", 10.0)},
    STAGES,
)  # fmt: skip


@pytest.fixture
def journal(tmp_path):
    with PipelineJournal(tmp_path) as opened:
        yield opened


def images(*numbers):
    return [PipelineEvent("images", f"{number}", NOW, f"{number}.jpg") for number in numbers]


def take(journal, most=3):
    events = journal.next_events("label", ("images",), most)
    batch = journal.new_batch("label", events, ("images",), "here")
    journal.write_batch(batch)
    return batch, [event.id for event in events]


def end(journal, batch, **metrics):
    journal.end_batch(replace(batch, state=JobState.COMPLETED, ended_at=NOW), metrics, PIPELINE)


def test_a_duplicate_changes_nothing(journal):
    assert journal.add_events(images(1, 2, 2)) == 2
    assert journal.add_events(images(2, 3)) == 1
    assert journal.source_counts() == {"images": 3}


def test_batches_divide_the_events_of_a_stage(journal):
    journal.add_events(images(*range(7)))
    taken = [take(journal) for _ in range(3)]
    assert [ids for _, ids in taken] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert [batch.number for batch, _ in taken] == [1, 2, 3]
    assert journal.waiting("label", ("images",)) == 0
    assert [[event.id for event in journal.events_of(batch)] for batch, _ in taken] == [ids for _, ids in taken]


def test_events_between_two_batches_belong_to_the_second_whatever_came_between(journal):
    journal.add_events(images(1))
    first, _ = take(journal)
    journal.add_events([PipelineEvent("nightly", "x", NOW), *images(2)])
    _, ids = take(journal)
    assert ids == ["2"]
    journal.add_events(images(3))
    assert [event.id for event in journal.events_of(first)] == ["1"]


def test_the_key_of_a_job_follows_from_the_journal_stage_batch_and_try(journal, tmp_path):
    journal.add_events(images(1))
    batch, _ = take(journal)
    assert journal.job_key(batch) == journal.job_key(batch)
    assert journal.job_key(batch) != journal.job_key(replace(batch, tries=2))
    with PipelineJournal(tmp_path / "another") as another:
        assert another.job_key(batch) != journal.job_key(batch)


def test_the_end_of_a_stage_and_a_crossed_line_are_events_once(journal):
    journal.add_events(images(*range(9)))
    for drift in (0.6, 0.7, 0.1):
        end(journal, take(journal)[0], drift=drift)
    assert [event.id for event in journal.next_events("after", ("label",), 9)] == ["1", "2", "3"]
    drifted = journal.next_events("retrain", ("drifted",), 9)
    assert [(event.id, event.payload) for event in drifted] == [("1", {"stage": "label", "batch": 1, "drift": 0.6})]
    journal.add_events(images(10))
    end(journal, take(journal)[0], drift=0.9)
    assert [event.id for event in journal.next_events("retrain", ("drifted",), 9)] == ["1", "4"]


def test_every_run_beyond_a_line_is_an_event_where_that_is_asked_for(journal):
    pipeline = replace(PIPELINE, events={"good": MetricSource("label", "gain", 0.0, above=True, every=True)})
    journal.add_events(images(*range(9)))
    for gain in (0.1, 0.2, -0.1):
        batch = replace(take(journal)[0], state=JobState.COMPLETED, ended_at=NOW)
        journal.end_batch(batch, {"gain": gain}, pipeline)
    assert [event.id for event in journal.next_events("x", ("good",), 9)] == ["1", "2"]


def test_a_failed_batch_is_no_event(journal):
    journal.add_events(images(1, 2))
    batch, _ = take(journal)
    journal.end_batch(replace(batch, state=JobState.FAILED), {}, PIPELINE)
    assert journal.next_events("after", ("label", "drifted"), 9) == ()
    counts = journal.stage_counts("label", ("images",))
    assert (counts.failed, counts.events_failed, counts.events_waiting) == (1, 2, 0)


def test_a_count_is_an_event_each_time_it_is_reached(journal):
    for numbers, reached in ((range(3), []), (range(3, 5), ["1"]), (range(5, 6), ["1"]), (range(6, 14), ["1", "3"])):
        journal.add_events(images(*numbers))
        journal.count_events(PIPELINE)
        assert [event.id for event in journal.next_events("x", ("enough",), 9)] == reached
    for labels in (6.0, 6.0):
        end(journal, take(journal)[0], labels=labels)
    journal.count_events(PIPELINE)
    assert [event.payload for event in journal.next_events("x", ("plenty",), 9)] == [{"total": 12.0}]


def test_counts_tell_where_every_event_is(journal):
    journal.add_events(images(*range(10)))
    end(journal, take(journal)[0])
    take(journal)
    counts = journal.stage_counts("label", ("images",))
    assert (counts.events_done, counts.events_running, counts.events_waiting) == (3, 3, 4)
    assert (counts.completed, counts.running) == (1, 1)
