"""Files from outside are read bounded, and every fault of a path is one sentence."""

import os
import threading
from pathlib import Path

import pytest

from leadline.core.errors import InvalidInput
from leadline.files.read import read_input, read_input_text


def test_content_and_text_are_those_of_the_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("é\r\nb\rc\n".encode())
    assert read_input(path) == "é\r\nb\rc\n".encode()
    assert read_input_text(path) == path.read_text(encoding="utf-8")


def test_a_pipe_is_read_to_its_end(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"x" * 3_000_000,))
    writer.start()
    assert read_input(path) == b"x" * 3_000_000
    writer.join()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("absent", "No such file or directory; check the path"),
        (".", "Is a directory; name a file in it"),
        ("loop", "symbolic links"),
        ("a\0b", "embedded null byte; check the path"),
        ("a" * 300, "File name too long"),
    ],
)
def test_a_path_that_cannot_be_read_is_refused(tmp_path, path, says):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InvalidInput, match="cannot be read") as caught:
        read_input(tmp_path / path)
    assert says in str(caught.value)


def test_an_endless_file_is_refused_at_the_bound():
    with pytest.raises(InvalidInput, match="it has more than 1,000,000 bytes"):
        read_input(Path("/dev/zero"), most=1_000_000)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(InvalidInput, match="it is not text in UTF-8; save it in that encoding, or move it away"):
        read_input_text(path, fix=", or move it away")
