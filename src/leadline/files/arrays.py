"""Read zip archives and numpy arrays without trusting what their headers claim."""

import io
import math
import struct
import zipfile
import zlib
from tokenize import TokenError

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput

Arrays = dict[str, npt.NDArray[np.generic]]

MOST_BYTES = 2**28
"""Most bytes of all members of an archive together; the shipped models have a tenth."""
_BAD_ARCHIVE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError)
_BAD_ARRAY = (TokenError, SyntaxError, EOFError, ArithmeticError, MemoryError, RecursionError, TypeError, ValueError)
"""Errors of the parsers of archives and of the headers of arrays."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_members(content: bytes, label: str) -> dict[str, bytes]:
    """Return the members of a zip archive, whose claimed sizes are checked before any is decompressed.

    Raises:
        InvalidInput: the archive is damaged, encrypted, compressed in another way, or too large.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {entry.filename: archive.read(entry) for entry in _bounded_entries(archive)}
    except _BAD_ARCHIVE as error:
        raise InvalidInput(f"{label} is damaged: {error}") from error


def _bounded_entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the entries of an archive; ``ValueError`` if reading them could fill the memory."""
    entries = archive.infolist()
    if sum(entry.file_size for entry in entries) > MOST_BYTES:
        raise ValueError(f"its parts claim more than {MOST_BYTES:,} bytes")
    # Other methods of compression have no bound on what one read makes.
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise ValueError("a part is compressed in an unknown way")
    return entries


def read_array(content: bytes, label: str) -> npt.NDArray[np.generic]:
    """Return the array of an ``.npy`` file.

    Raises:
        InvalidInput: it is no such file, needs pickle, or has another size than its header claims.
    """
    try:
        return _parse_array(content)
    except _BAD_ARRAY as error:
        raise InvalidInput(f"{label} is not a numpy array: {error}") from error


def _parse_array(content: bytes) -> npt.NDArray[np.generic]:
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"its format is version {'.'.join(map(str, version))}")
    shape, fortran, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which only pickle could read")
    claimed = math.prod(shape) * dtype.itemsize
    # a bytearray gives an array that can be written to, as numpy's own reader does
    data = bytearray(content[stream.tell() : stream.tell() + max(claimed, 0)])
    if min(shape, default=0) < 0 or dtype.itemsize == 0 or claimed != len(data):
        raise ValueError("its header claims another size than it has")
    array: npt.NDArray[np.generic] = np.frombuffer(data, dtype) if claimed else np.zeros(0, dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def read_arrays(content: bytes, label: str) -> Arrays:
    """Return the arrays of an ``.npz`` file by name.

    Raises:
        InvalidInput: as in ``read_members`` and ``read_array``.
    """
    members = read_members(content, label)
    return {name.removesuffix(".npy"): read_array(array, f"{name} of {label}") for name, array in members.items()}
