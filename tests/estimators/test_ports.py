"""The state of an estimator comes back as it was."""

import pytest

from leadline.estimators.ports import strings, text_array


@pytest.mark.parametrize("values", [(), ("a", ""), ("V\x00", "V", "\x00\x00"), ("\x01", "a\x01", "a\x00\x01")])
def test_texts_survive_storage_with_any_ending(values):
    assert values == strings(text_array(values))
