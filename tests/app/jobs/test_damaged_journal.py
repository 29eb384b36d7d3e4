"""Journals with content that cannot be right: one sentence that names the file, whatever is in it."""

import json
import os
import shutil
import sqlite3
import sys
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leadline.core.errors import LeadlineError, UnknownName
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Attempt, AttemptPlan, EventKind, Job, Place, Policy
from leadline.execution.clock import ManualClock
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from leadline.interfaces.cli.main import run
from tests.support.fake_scheduler import FakeScheduler
from tests.support.plane_parts import FakeAdvisor, diagnose_by_state, retry_node_failures

PLACE = Place("here", "short")
AT = "2026-01-02T03:04:05.000+00:00"
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.sampled_from([-1, -5.5, 1e300, -1e300, 10**400]),
    st.text(max_size=20), st.just([]), st.just({}), st.just([{}]), st.just("9999-12-31T23:59:59"), st.just("RUNNING"),
)  # fmt: skip
COLUMNS = {
    "job": ("key", "state", "reason", "plan", "document"),
    "attempt": ("key", "job", "document"),
    "event": ("at", "kind", "job", "attempt", "said"),
}


def write_journal(path):
    spec = JobSpec("train", ("python", "train.py"), ResourceSpec(walltime_s=600.0))
    predicted = Estimate(Target("cpu"), "roofline", Basis(Tier.CALIBRATED), elapsed_s=Interval(10.0, 8.0, 13.0))
    jobs = [Job(key, spec, Policy((PLACE,)), created_at=AT, predicted=predicted) for key in ("a", "b", "c")]
    attempt = Attempt(
        "a1", "a", 1, PLACE, spec.resources, "a1", JobState.RUNNING, "7", AT, AT, AT, walltime_s=600.0, node="n1"
    )
    progress = {"steps": 10, "total": 100, "elapsed_s": 5.0, "host_memory_bytes": 1e9}
    decision = {"action": "keep", "why": "it is fine", "total_s": 9.0, "total_low_s": 8.0, "total_high_s": 10.0}
    with PlaneJournal(path, ManualClock()) as journal:
        journal.add(jobs)
        plan = AttemptPlan(PLACE, spec.resources, AT, "its node failed")
        journal.write(
            jobs=[Job("b", spec, Policy((PLACE,)), plan=plan)],
            attempts=[attempt, Attempt("b1", "b", 1, PLACE, spec.resources, "b1", JobState.NODE_FAIL, ended_at=AT)],
            events=[
                NewEvent(EventKind.PROGRESS, "a", "a1", progress), NewEvent(EventKind.DECISION, "a", "a1", decision),
                NewEvent(EventKind.FAULT, details={"system": "here", "why": "no", "times": 2, "last_at": AT}),
                NewEvent(EventKind.STATE, "a", "a1", {"state": "RUNNING", "node": "n1"}),
            ],
        )  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "journal.sqlite"
    write_journal(path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path))
    (tmp_path / "plane").mkdir()
    return tmp_path / "plane"


def leaves(document, at=()):
    """Yield the paths of all values in a document."""
    yield at
    if isinstance(document, dict):
        for name, value in document.items():
            yield from leaves(value, (*at, name))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from leaves(value, (*at, index))


def changed(document, at, value):
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = changed(document[at[0]], at[1:], value)
    return copy


def mutate(path, data):
    """Change one value of one row: a whole column, or one value in its JSON."""
    table = data.draw(st.sampled_from(sorted(COLUMNS)))
    column = data.draw(st.sampled_from(COLUMNS[table]))
    with sqlite3.connect(path) as connection:
        rows = connection.execute(f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()  # noqa: S608
        row, text = data.draw(st.sampled_from(rows))
        value = data.draw(JUNK)
        if column in ("plan", "document", "said") and data.draw(st.booleans()):
            document = json.loads(text)
            text = json.dumps(changed(document, data.draw(st.sampled_from(list(leaves(document)))), value))
        else:
            text = value if isinstance(value, str) else json.dumps(value)
        try:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (text, row))  # noqa: S608
        except sqlite3.IntegrityError:
            return
    connection.close()


def fresh(folder):
    """Return the path of the journal, with nothing of the last example there."""
    for file in folder.iterdir():
        file.unlink()
    return folder / "journal.sqlite"


def scheduler_of(name, clock):
    if name != "here":
        raise UnknownName("system", name, ["here"])
    return FakeScheduler("here", clock)


def check_every_reader(path, capsys):
    """Let every reader of the journal read it: each works, or ends in one sentence."""
    for words in (["jobs", "--all"], ["jobs", "--all", "--json"], ["explain", "a"], ["explain", "b", "--full"]):
        with patch.object(sys, "argv", ["leadline", *words]), pytest.raises(SystemExit) as ended:
            run()
        code, printed = ended.value.code, capsys.readouterr()
        assert code in (0, 1, 2)
        assert "internal error" not in printed.err, printed.err
        assert "Traceback" not in printed.err
        assert code == 0 or (printed.err.count("\n") == 1 and len(printed.err) < 1000), printed.err
    clock = ManualClock()
    try:
        with PlaneJournal(path, clock) as journal:
            plane = Plane(
                journal, lambda name: scheduler_of(name, clock), FakeAdvisor(), diagnose=diagnose_by_state,
                decide=retry_node_failures, clock=clock,
            )  # fmt: skip
            plane.step()
    except LeadlineError as error:
        assert len(str(error)) < 1000  # noqa: PT017 - reading may also succeed


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_wrong_value_ends_in_one_sentence(good, folder, capsys, data):
    path = fresh(folder)
    shutil.copyfile(good, path)
    mutate(path, data)
    check_every_reader(path, capsys)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_page_ends_in_one_sentence(good, folder, capsys, data):
    path = fresh(folder)
    content = bytearray(good.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(1, len(content) - 1)) :]
    else:
        at = data.draw(st.integers(0, len(content) - 64))
        content[at : at + 64] = data.draw(st.binary(min_size=64, max_size=64))
    path.write_bytes(content)
    check_every_reader(path, capsys)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE job SET state = 'DANCING' WHERE key = 'a'", "job a: 'DANCING' is not a valid JobState"),
        ("UPDATE job SET document = '[' WHERE key = 'a'", "malformed JSON|job a"),
        ("UPDATE event SET kind = 'sung'", "'sung' is not a valid EventKind"),
        ("UPDATE attempt SET document = json_set(document, '$.number', -3) WHERE key = 'a1'", "number is -3"),
        ("UPDATE attempt SET document = json_set(document, '$.started_at', 'x')", "an attempt: Invalid isoformat"),
        (
            "UPDATE attempt SET document = replace(hex(zeroblob(50000)), '00', '{\"a\":')",
            "an attempt: maximum recursion",
        ),
    ],
)
def test_the_sentence_names_the_file_the_value_and_the_fix(good, folder, change, says):
    path = folder / "journal.sqlite"
    shutil.copyfile(good, path)
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    connection.close()
    with PlaneJournal(path) as journal, pytest.raises(LeadlineError, match=says) as raised:
        _ = journal.open_jobs(), journal.events()
    assert f"the journal {path} is damaged" in str(raised.value)
    assert "move it away" in str(raised.value)
    assert os.access(path, os.R_OK)
