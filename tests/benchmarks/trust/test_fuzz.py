"""The fuzzer tries every reader, and finds what it looks for: bare exceptions, hangs, memory, and unclear sentences."""

import os
import time

import pytest

from benchmarks.trust import fuzz
from benchmarks.trust.mutations import Form
from benchmarks.trust.readers import Reader, all_readers, texts
from leadline.core.errors import InvalidInput, LeadlineError


def refuse(path):
    raise InvalidInput(f"{path} is damaged")


def spin(_):
    while True:
        pass


def speak(_):
    error = LeadlineError("x")
    error.args = ("\x1b[2J",)
    raise error


def nest(path):
    nest(path)


def fail(path):
    raise ValueError(path)


FAULTS = {
    "bare": (fail, "bare"),
    "recursive": (nest, "bare"),
    "killed": (lambda _: os._exit(3), "bare"),
    "hang": (spin, "hang"),
    "memory": (lambda _: bytearray(5 * 2**30), "memory"),
    "unclear": (speak, "message"),
    "refused": (refuse, None),
    "answered": (lambda path: path.exists(), None),
}


@pytest.fixture
def readers(monkeypatch):
    made = {name: Reader(name, "x", "x.txt", Form.TEXT, texts("hello"), read) for name, (read, _) in FAULTS.items()}
    monkeypatch.setattr(fuzz, "all_readers", lambda: made)
    return made


def test_each_kind_of_fault_is_found_and_the_others_go_on(readers, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    began_s = time.process_time()
    result = fuzz.fuzz(fuzz.plan(3 * len(readers), 1, list(readers.values())), limit_s=1.5)
    assert result.inputs == 3 * len(readers)
    assert result.readers == set(readers)
    assert result.refused == 3
    found = {name: {fault.kind for fault in result.faults if fault.case.reader == name} for name in readers}
    assert found == {name: {kind} - {None} for name, (_, kind) in FAULTS.items()}
    assert time.process_time() - began_s < 5
    assert list(tmp_path.iterdir()) == []  # also of the processes that were killed


def test_a_case_gives_the_same_input_again():
    case = fuzz.Case("config.json", 7, 3)
    assert case.content() == case.content()
    assert case.content() != fuzz.Case("config.json", 7, 4).content()


def test_the_full_size_tries_twenty_thousand_inputs_over_all_readers():
    batches = fuzz.plan(fuzz.INPUTS, 1, list(all_readers().values()))
    cases = [case for batch in batches for case in batch]
    assert len(cases) >= 20_000
    assert {case.reader for case in cases} == {reader.name for reader in all_readers().values() if reader.corpus()}


def test_a_small_run_gives_rows_that_meet_their_targets(monkeypatch):
    monkeypatch.setattr(fuzz, "QUICK_INPUTS", 60)
    rows = fuzz.rows(quick=True)
    assert [row.name for row in rows if not row.met] == []
    assert {row.target for row in rows} == {0}
    assert all(row.n >= 60 for row in rows)
