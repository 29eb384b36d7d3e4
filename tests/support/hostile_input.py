"""Hypothesis strategies for damaged input, and the check that each reader answers or refuses it in one sentence."""

import json
import random
import warnings
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.trust.fuzz import try_input
from benchmarks.trust.mutations import Form, mutate, zipped
from benchmarks.trust.readers import put_input

NUMBERS = st.integers() | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=20),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=8), inside, max_size=4),
    max_leaves=12,
)
TEXT = st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=300)
DOCUMENTS = VALUES.map(lambda value: json.dumps(value).encode())
ANYTHING = {
    Form.JSON: DOCUMENTS,
    Form.JSON_LINES: st.lists(DOCUMENTS, max_size=4).map(lambda lines: b"".join(line + b"\n" for line in lines)),
    Form.ARRAY: st.binary(max_size=100).map(lambda data: b"\x93NUMPY\x01\x00" + data),
    Form.ZIP: st.dictionaries(st.text("abc./", min_size=1, max_size=9), st.binary(max_size=60), max_size=4).map(zipped),
}
"""Content of a form that has nothing to do with the reader's."""


def damaged(reader):
    """Return a strategy of contents: valid ones with damage, and others of the same form."""
    seeds = st.integers(0, 2**32)
    made = st.builds(
        lambda content, seed: mutate(content, reader.form, random.Random(seed)),  # noqa: S311 - the seed is drawn
        st.sampled_from(reader.corpus()), seeds,
    )  # fmt: skip
    return made | made | made | ANYTHING.get(reader.form, TEXT)


def check_reader(reader, folder, *, examples=20):
    """Read damaged contents; any error but a ``LeadlineError`` with a clear sentence fails the test."""
    if not reader.corpus():
        pytest.skip(f"{reader.name} needs an extra")
    numbers = count()

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(damaged(reader))
    def read(content):
        number = next(numbers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy and zipfile warn of damage that they read
            kind, what = try_input(reader, put_input(reader, content, folder / str(number), number))
        assert kind in ("", "refused"), f"{kind}: {what}"

    for content in reader.corpus():
        assert try_input(reader, put_input(reader, content, folder / f"valid-{next(numbers)}")) == ("", "")
    numbers = count()
    read()
