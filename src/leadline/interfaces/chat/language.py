"""Put the text of a question into a form that patterns can read: digits for number words, no spelling mistakes."""

import re
from functools import lru_cache

from leadline.interfaces.chat import cues

UNITS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17,
    "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70,
    "eighty": 80, "ninety": 90,
}  # fmt: skip
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "k": 1000, "m": 10**6, "dozen": 12}
_WORD = re.compile(r"(?<![\w./:@-])[A-Za-z]{4,}(?![\w./:@-]*[\w/])")
_UNIT, _SCALE = "|".join(UNITS), "hundred|thousand|million|dozen"
_NUMERAL = re.compile(
    rf"(?<![\w-])(?:an? (?={_SCALE}))?(?:{_UNIT}|{_SCALE})"
    rf"(?:(?:[ -]|(?<=hundred) and |(?<=thousand) and |(?<=million) and | point )(?:{_UNIT}|{_SCALE})\b)*(?!\w)",
    re.IGNORECASE,
)
_SCALED = re.compile(rf"(?<![\w.-])(\d+(?:\.\d+)?) ({_SCALE})\b", re.IGNORECASE)
_FRACTIONS = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"\bhalf an epoch\b", "0.5 epochs"), (r"\b(?:an? |one )?single epoch\b", "1 epoch"),
        (r"\bhalf a million\b", "500000"),
        (r"\b(?:a )?quarter of a million\b", "250000"), (r"(?<![\w.,])(\d{1,3}) 000\b", r"\g<1>000"),
        (r"\b(?:one|1) and a half\b", "1.5"), (r"\b(?:two|2) and a half\b", "2.5"),
        (r"\b(\d+) and a half\b", r"\g<1>.5"),
    )
)  # fmt: skip
LARGEST = 1e18
"""Largest number that is read; no argument of a tool may be as large."""
_PLAIN = {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": " - ", "…": "...", "×": "x"}


def normal(text: str) -> str:
    """Return the text with plain quotes and dashes, whole words, digits for numerals, and corrected words."""
    for special, plain in _PLAIN.items():
        text = text.replace(special, plain)
    for short, long in cues.table("abbreviations").items():
        text = re.sub(rf"(?<![\w./-])(?:{short})(?![\w/-])", long, text, flags=re.IGNORECASE)
    text = _WORD.sub(lambda match: corrected(match[0], cues.words("vocabulary")), " ".join(text.split()))
    return with_digits(re.sub(r"(?<![\w.])(\d+)[xX*](?=[A-Za-z])", r"\1 x ", text))


def with_digits(text: str) -> str:
    """Return the text with digits instead of numerals: ``two hundred`` becomes ``200``.

    A lone ``one`` is often no number, and stays unless something is counted.
    """
    for pattern, replacement in _FRACTIONS:
        text = pattern.sub(replacement, text)
    text = _NUMERAL.sub(_digits, text)
    text = cues.pattern("counted-one").sub("1", text)
    return _SCALED.sub(lambda match: whole(float(match[1]) * SCALES[match[2].lower()]), text)


def _digits(match: re.Match[str]) -> str:
    """Return a numeral in digits; a scale after digits is left to them."""
    follows_digits = match[0].split()[0].lower() in SCALES and re.search(r"\d $", match.string[: match.start()])
    return match[0] if follows_digits or match[0].lower() == "one" else whole(_value(match[0]))


def _value(numeral: str) -> float:
    """Return the value of a numeral such as ``a hundred and fifty`` or ``one point two million``."""
    total, current, decimals = 0.0, 0.0, 0
    for word in re.findall(r"[a-z]+", numeral.lower()):
        if word in UNITS:
            decimals *= 10
            current += UNITS[word] / (decimals or 1)
        elif word == "point":
            decimals = 1
        elif word in SCALES:
            current, decimals = max(current, 1) * SCALES[word], 0
            if SCALES[word] >= 1000:
                total, current = total + current, 0.0
    return total + current


def number(digits: str, scale: str | None = None) -> float:
    """Return the value of the two groups of the cue ``number``, at most ``LARGEST``."""
    return min(float(digits.replace(",", "")) * SCALES.get((scale or "").lower(), 1), LARGEST)


def tidy(value: float) -> int | float:
    """Return a whole number as an integer."""
    return int(value) if float(value).is_integer() else value


def whole(value: float) -> str:
    """Return a number without a needless point."""
    return f"{value:.12g}"


@lru_cache(10_000)
def corrected(word: str, vocabulary: frozenset[str]) -> str:
    """Return the word of the vocabulary that this one is a slip of, or the word itself.

    Slips are two letters in the wrong order, a letter too many or too few, and in long words a wrong one. The first
    letter is right.
    """
    lower = word.lower()
    if lower in vocabulary or lower in cues.words("real-words"):
        return word
    near = [known for known in vocabulary if known[0] == lower[0] and _is_slip(lower, known)]
    return min(near, key=lambda known: (abs(len(known) - len(lower)), known)) if near else word


def _is_slip(word: str, known: str) -> bool:
    if abs(len(word) - len(known)) > 1 or len(known) < 4:
        return False
    if len(word) == len(known):
        wrong = [at for at, (sign, right) in enumerate(zip(word, known, strict=True)) if sign != right]
        swapped = (
            len(wrong) == 2
            and wrong[1] == wrong[0] + 1
            and word[wrong[0]] == known[wrong[1]]
            and word[wrong[1]] == known[wrong[0]]
        )
        return swapped or (len(wrong) == 1 and len(word) >= 8)
    longer, shorter = sorted((word, known), key=len, reverse=True)
    # Another ending is another form of a word.
    return len(longer) >= 5 and any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer) - 1))
