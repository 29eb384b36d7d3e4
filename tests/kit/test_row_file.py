"""The file of measurements: resumed after any cut, and never another machine's or anybody else's."""

import json
import os

import pytest

from leadline.kit import KitError
from leadline.kit.row_file import RowFile

HERE = {
    "device": {"type": "cuda", "name": "A100", "memory_bytes": 40, "threads": None},
    "software": {"torch": "2.9", "runtime": "12.8", "driver": "570", "cudnn": 9},
}
ROWS = [{"kind": "point", "key": f"k{number}", "outcome": "ok"} for number in range(3)]


@pytest.fixture
def path(tmp_path):
    file = RowFile(str(tmp_path / "rows.jsonl")).open()
    file.begin(HERE)
    for row in ROWS:
        file.append(row)
    file.close()
    return tmp_path / "rows.jsonl"


def reopened(path, header=HERE):
    file = RowFile(str(path)).open()
    try:
        file.begin(header)
        file.append({"kind": "point", "key": "new"})
        return [row["key"] for row in file.rows]
    finally:
        file.close()


def keys(path):
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert header["schema"] == "leadline.measure/1"
    return [row["key"] for row in rows]


def test_a_file_truncated_anywhere_resumes_with_its_complete_lines(path, tmp_path):
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    near = {end + shift for end in ends for shift in (-1, 0, 1)} - {len(whole) + 1}
    for cut in sorted({*range(0, len(whole), 13), *near}):
        file = tmp_path / "cut.jsonl"
        file.write_bytes(whole[:cut])
        rows = max(0, sum(end <= cut for end in ends) - 1)
        assert [*[f"k{number}" for number in range(rows)], "new"] == reopened(file) == keys(file), cut


def test_a_last_line_of_zeros_is_dropped(path):
    with path.open("ab") as stream:
        stream.write(b"\0" * 40 + b"\n")
    assert ["k0", "k1", "k2", "new"] == reopened(path) == keys(path)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("device", "name"), "H100", "another device (A100, here H100)"),
        (("software", "torch"), "2.10", "another torch (2.9, here 2.10)"),
        (("software", "driver"), "580", "another driver (570, here 580)"),
        (("device", "threads"), 4, "another number of threads (None, here 4)"),
    ],
)
def test_rows_of_another_machine_are_refused(path, place, value, words):
    before = path.read_bytes()
    other = json.loads(json.dumps(HERE))
    other[place[0]][place[1]] = value
    with pytest.raises(KitError) as caught:
        reopened(path, other)
    assert str(caught.value) == f"{path} holds rows of {words}: give --out another file"
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "leadline.history/1"}\n', "has the schema leadline.history/1, not leadline.measure/1"),
        ("[1, 2]\n", "has the schema none, not leadline.measure/1"),
        ("a,b\n1,2\n", "line 1 of"),
        ("my thesis, unsaved elsewhere", "is no file of measurements"),
    ],
)
def test_another_kind_of_file_is_refused_unchanged(text, says, tmp_path):
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(KitError, match=says):
        RowFile(str(path)).open()
    assert path.read_text() == text


def test_an_invalid_line_is_reported_by_number(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "{oops\n", *lines[2:]]))
    with pytest.raises(KitError, match=r"line 2 of .* is no JSON: delete that line"):
        RowFile(str(path)).open()


def test_two_runs_never_write_to_one_file(path):
    first = RowFile(str(path)).open()
    with pytest.raises(KitError, match="is being written by another run"):
        RowFile(str(path)).open()
    first.close()
    assert reopened(path)[-1] == "new"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_file_is_refused(path):
    path.chmod(0o400)
    with pytest.raises(KitError, match=r"cannot be written \(Permission denied\)"):
        RowFile(str(path)).open()


def test_a_full_disk_is_reported_and_the_file_can_be_resumed():
    file = RowFile("/dev/full")
    file._file = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(KitError, match=r"cannot be written further \(No space left on device\)"):
        file.append({"kind": "point"})
    file.close()
