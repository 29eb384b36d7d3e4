"""The history file: whole runs, several writers, and errors for other files."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.core.errors import LeadlineError, UnknownName
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.runs import Measurement, Run
from leadline.history.export import runs_to_csv
from leadline.history.sqlite import SqliteHistory

RUN = Run(
    "a1b2c3",
    JobSpec("digits", ("python", "train.py"), ResourceSpec(memory_bytes_per_node=2**30), environment={"A": "1"}),
    JobState.COMPLETED,
    "2026-01-02T03:04:05+00:00",
    exit_code=0,
    predicted=Estimate(Target("cpu"), "roofline", Basis(Tier.CALIBRATED), elapsed_s=Interval(10.0, 8.0, 13.0)),
    measured={"elapsed_s": Measurement(11.0, "s", "clock"), "host_memory_bytes": Measurement(5e8, "bytes", "PSS", 0.5)},
)


@pytest.fixture
def history(tmp_path):
    return SqliteHistory(tmp_path / "deep" / "history.sqlite")


def test_a_run_comes_back_as_it_went_in(history):
    history.add(RUN)
    assert history.get("a1b2c3") == RUN
    assert list(history.runs()) == [RUN]


def test_runs_come_newest_first_up_to_the_limit(history):
    for day in (3, 1, 2):
        history.add(replace(RUN, id=f"r{day}", started_at=f"2026-01-0{day}T00:00:00+00:00"))
    assert [run.id for run in history.runs()] == ["r3", "r2", "r1"]
    assert [run.id for run in history.runs(limit=1)] == ["r3"]


def test_the_same_id_replaces_the_run(history):
    history.add(replace(RUN, state=JobState.PENDING))
    history.add(RUN)
    assert list(history.runs()) == [RUN]


def test_a_run_is_found_by_the_beginning_of_its_id_and_an_unknown_one_names_the_closest(history):
    history.add(RUN)
    assert history.get("a1b") == RUN
    with pytest.raises(UnknownName, match="unknown run 'a1b2c4': did you mean 'a1b2c3'"):
        history.get("a1b2c4")


def test_reading_an_absent_history_makes_no_file(history):
    assert list(history.runs()) == []
    with pytest.raises(UnknownName, match="the history is empty"):
        history.get("x")
    assert not history.path.parent.exists()


def test_several_writers_lose_nothing(history):
    def write(number):
        SqliteHistory(history.path).add(replace(RUN, id=f"run-{number}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert len(list(history.runs())) == 40


def test_a_damaged_file_is_named_and_left_as_it_is(history):
    history.path.parent.mkdir()
    history.path.write_bytes(b"this is no database, but somebody's notes" * 50)
    before = history.path.read_bytes()
    with pytest.raises(LeadlineError, match="is damaged or not a history"):
        history.add(RUN)
    with pytest.raises(LeadlineError, match="is damaged or not a history"):
        list(history.runs())
    assert history.path.read_bytes() == before


def test_a_file_of_another_version_is_refused(history):
    history.add(RUN)
    with sqlite3.connect(history.path) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(LeadlineError, match="has version 9, and this Leadline reads version 1"):
        list(history.runs())


def test_another_programs_database_is_not_written_to(history):
    history.path.parent.mkdir()
    with sqlite3.connect(history.path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(LeadlineError, match="the database of another program: move it away"):
        history.add(RUN)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=25)
@given(value=FINITE, name=st.text(), words=st.lists(st.text()))
def test_any_values_survive_storage(tmp_path_factory, value, name, words):
    run = replace(
        RUN, job=replace(RUN.job, name=name, command=tuple(words)), measured={name: Measurement(value, "s", name)}
    )
    history = SqliteHistory(tmp_path_factory.mktemp("history") / "history.sqlite")
    history.add(run)
    assert history.get(RUN.id) == run


def test_the_table_has_a_line_per_run_and_empty_unknowns():
    bare = replace(RUN, id="bare", state=JobState.TIMEOUT, predicted=None, measured={})
    header, first, second = runs_to_csv([RUN, bare]).splitlines()
    columns = header.split(",")
    assert first.split(",")[columns.index("predicted_elapsed_s")] == "10.0"
    assert first.split(",")[columns.index("measured_elapsed_s")] == "11.0"
    assert second.split(",")[columns.index("measured_elapsed_s")] == ""
    assert second.split(",")[columns.index("censored")] == "True"
