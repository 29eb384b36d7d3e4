"""Arrays and archives are read as numpy reads them, and a header that lies is refused before memory is taken for it."""

import io
import resource
import struct
import zipfile

import numpy as np
import pytest

from leadline.core.errors import InvalidInput
from leadline.files.arrays import MOST_BYTES, read_array, read_arrays, read_members


def saved(array, **options):
    target = io.BytesIO()
    np.save(target, array, **options)
    return target.getvalue()


def with_header(text, data=b"", size=None):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) if size is None else size) + text.encode() + data


def test_arrays_are_those_that_were_saved():
    for array in (
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.eye(3)),
        np.array(["a", "bc"]),
        np.zeros(0),
        np.array(2.5),
    ):
        again = read_array(saved(array), "x.npy")
        assert np.array_equal(again, array)
        assert again.dtype == array.dtype
        assert again.flags.writeable


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello", b"\x93NUMPY", with_header("(" * 5000), with_header("{'descr': '<i8'"),
        with_header("", size=65535),
        with_header("{'descr': '<i8', 'fortran_order': False, 'shape': (3000000000,), }", b"\0" * 8),
        with_header("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }", b"\0" * 8),
        with_header("{'descr': '|V0', 'fortran_order': False, 'shape': (3000000000,), }"),
        with_header("{'descr': '<U2000000000', 'fortran_order': False, 'shape': (1,), }"),
        saved(np.array([{"a": 1}], dtype=object), allow_pickle=True),
    ],
)  # fmt: skip
def test_a_file_that_is_no_array_is_refused(content):
    with pytest.raises(InvalidInput, match=r"x\.npy is not a numpy array: "):
        read_array(content, "x.npy")


def test_an_archive_is_read_whole(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.array(["t"]))
    arrays = read_arrays((tmp_path / "a.npz").read_bytes(), "a.npz")
    assert {name: array.tolist() for name, array in arrays.items()} == {"x": [0, 1, 2], "y": ["t"]}


def test_a_bomb_is_refused_before_it_is_unpacked():
    target = io.BytesIO()
    with (
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        for _ in range(MOST_BYTES // 2**24 + 1):
            member.write(bytes(2**24))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInput, match=r"a\.npz is damaged: its parts claim more than 268,435,456 bytes"):
        read_arrays(target.getvalue(), "a.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(method):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.writestr("x.npy", bytes(1000))
    with pytest.raises(InvalidInput, match="compressed in an unknown way"):
        read_members(target.getvalue(), "a.npz")


def test_every_cut_of_an_archive_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(300))
    content = (tmp_path / "a.npz").read_bytes()
    for length in range(0, len(content) - 1, 7):
        with pytest.raises(InvalidInput, match=r"a\.npz"):
            read_arrays(content[:length], "a.npz")
