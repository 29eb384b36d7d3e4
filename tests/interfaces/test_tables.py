"""Tables keep every number at every width, and line up."""

import re

import pytest

from leadline.interfaces.tables import cell_width, format_currency, table_lines

TITLES = ("place", "device", "step", "elapsed", "90 % range", "GPU memory", "host", "cost")
ROWS = [
    ("Azure East US:Standard_ND96isr_H100_v5", "8 × H100 SXM5 80GB", "323 ms", "15.3 s", "5.29 s – 45.4 s", "67.5 GiB",
     "13.9 GiB", "$0.4185"),
    ("Perlmutter:regular-gpu80", "A100 SXM4 80GB", "679 ms", "15.7 s", "5.59 s – 45.8 s", "\x1b[31m67.3 GiB !\x1b[0m",
     "13.9 GiB", "0.00436 Perlmutter GPU node-hour"),
]  # fmt: skip
WORDS = ("place", "device")


def numbers(text):
    return sorted(re.findall(r"\d[\d.]*", text))


def plain(cell):
    return re.sub("\x1b\\[[0-9;]*m", "", cell)


def test_a_table_that_fits_has_one_line_a_row_with_figures_aligned_right():
    title, first, second = table_lines(TITLES, ROWS, 200, words=WORDS)
    assert title.startswith("place  ")
    assert first.startswith("Azure East US:Standard_ND96isr_H100_v5  8 × H100 SXM5 80GB  323 ms")
    assert first.index("ms") == second.index("ms")
    assert cell_width(second) == first.index("$0.4185") + len("$0.4185")


@pytest.mark.parametrize("width", [120, 80, 60])
def test_no_figure_is_cut_or_broken_on_a_narrow_terminal(width):
    lines = table_lines(TITLES, ROWS, width, words=WORDS)
    assert all(cell_width(line) <= width for line in lines)
    text = plain("\n".join(lines))
    for row in ROWS:
        assert all(plain(cell) in text for cell in row[2:])
    assert "…" not in text


def test_columns_of_words_wrap_before_figures_move():
    lines = table_lines(
        ("reason", "cost"), [("no digit of a price may be lost on the way", "$1.25")], 30, words=("reason",)
    )
    assert lines == [
        "reason                    cost",
        "no digit of a price may  $1.25",
        "be lost on the way",
    ]


def test_a_column_without_title_and_text_is_left_out():
    assert table_lines(("a", "", "b"), [("1", "", "2")], 80) == ["a  b", "1  2"]


def test_wide_letters_take_two_columns():
    assert cell_width("作业") == 4
    assert cell_width("e\u0301") == 1


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (0.01234, "USD", "$0.01234"), (12.346, "USD", "$12.35"), (12345.6, "USD", "$12,346"), (999.96, "USD", "$1,000"),
        (2.391, "Anvil CPU SU", "2.39 Anvil CPU SU"), (99960.0, None, "99,960"), (0.0, "USD", "$0"),
    ],
)  # fmt: skip
def test_a_large_amount_has_no_exponent(amount, currency, text):
    assert format_currency(amount, currency) == text
