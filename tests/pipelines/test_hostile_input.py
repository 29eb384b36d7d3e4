"""Damaged input of every reader of this room ends in an answer or in one clear sentence."""

import pytest

from benchmarks.trust.readers import readers_of
from tests.support.hostile_input import check_reader


@pytest.mark.parametrize("reader", readers_of("pipelines"), ids=lambda reader: reader.name)
def test_damaged_input_is_read_or_refused_in_a_sentence(reader, tmp_path):
    check_reader(reader, tmp_path)
