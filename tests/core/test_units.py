"""Durations and sizes carry their unit, unless the format that they come from defines one."""

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.units import GIB, MIB, MINUTE_S, parse_bytes, parse_duration_s


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [("90s", 90.0), ("15m", 900.0), ("2h30m", 9000.0), ("1-12:30", 131400.0), ("12:30", 750.0), ("250ms", 0.25)],
)
def test_a_duration_has_units_or_clock_fields(text, expected_s):
    assert parse_duration_s(text) == expected_s


@pytest.mark.parametrize("text", ["12", " 12 ", "0.5"])
def test_a_duration_without_a_unit_is_refused_with_the_units_to_choose_from(text):
    with pytest.raises(InvalidInput, match=f"has no unit: write {text.strip()}h, {text.strip()}m or {text.strip()}s"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["16", "1073741824"])
def test_a_size_without_a_unit_is_refused_with_the_units_to_choose_from(text):
    with pytest.raises(InvalidInput, match=f"'{text}' has no unit: write {text}GiB, {text}MiB or {text}B"):
        parse_bytes(text)


def test_a_size_has_a_binary_or_a_decimal_unit():
    assert [parse_bytes(text) for text in ("16GiB", "16G", "16GB", "4096B")] == [16 * GIB, 16 * GIB, 16 * 10**9, 4096]


def test_a_format_may_define_what_a_bare_number_means():
    assert parse_duration_s("90", bare_s=MINUTE_S) == 5400.0
    assert parse_bytes("100", bare_bytes=MIB) == 100 * MIB
    assert parse_bytes("1G", bare_bytes=MIB) == GIB
