"""Put the text of a question into a form that patterns can read: digits for number words, no spelling mistakes."""

import re
from functools import cache

from leadline.interfaces.chat import cues

NUMBER_WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18,
    "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90,
}  # fmt: skip
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "k": 1000, "m": 10**6, "dozen": 12}
COUNTED = (
    r"(?:gpus?|cards?|nodes?|cores?|cpus?|days?|hours?|hrs?|weeks?|minutes?|mins?|epochs?|pass(?:es)?|percent|%|"
    r"attempts?|tr(?:y|ies)|workers?|samples?|hundred|thousand|million|dozen|in \d)"
)
"""Words that make ``one`` a number."""

_TENS = re.compile(r"\b(twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)[- ](one|two|three|four|five|six|seven|eight|nine)\b")
_WORD = re.compile(r"(?<![\w./:@-])[A-Za-z]{4,}(?![\w./:@-]*[\w/])")


def normal(text: str) -> str:
    """Return the text with plain quotes and dashes, digits for number words, and corrected words."""
    for special, plain in {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": " - ", "…": "...", "×": "x"}.items():
        text = text.replace(special, plain)
    text = _WORD.sub(lambda match: corrected(match[0], cues.words("vocabulary")), " ".join(text.split()))
    return with_digits(re.sub(r"(?<![\w.])(\d+)[xX*](?=[A-Za-z])", r"\1 x ", text))


def with_digits(text: str) -> str:
    """Return the text with digits instead of number words: ``two hundred`` becomes ``200``."""
    units = {"one": 1, **NUMBER_WORDS}
    text = _TENS.sub(lambda match: str(units[match[1].lower()] + units[match[2].lower()]), text)
    text = re.sub(rf"\bone(?=[ -]{COUNTED}\b)", "1", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<=\b(?:bs|of|is) )one\b|(?<=\bbatch )one\b|(?<=\bsize )one\b|(?<=\brank )one\b|(?<=\battempt )one\b", "1", text,
                  flags=re.IGNORECASE)  # fmt: skip
    text = re.sub(r"\bhalf an epoch\b", "0.5 epochs", text, flags=re.IGNORECASE)
    text = re.sub(r"\ban?(?= (?:hundred|thousand|million|dozen)\b)", "1", text, flags=re.IGNORECASE)
    text = re.sub(rf"\b({'|'.join(NUMBER_WORDS)})\b", lambda match: str(units[match[1].lower()]), text,
                  flags=re.IGNORECASE)  # fmt: skip
    return re.sub(
        r"\b(\d+(?:\.\d+)?) (hundred|thousand|million|dozen)\b",
        lambda match: whole(float(match[1]) * SCALES[match[2].lower()]), text, flags=re.IGNORECASE,
    )  # fmt: skip


def number(digits: str, scale: str | None = None) -> float:
    """Return the value of the two groups of the cue ``number``."""
    return float(digits.replace(",", "")) * SCALES.get((scale or "").lower(), 1)


def tidy(value: float) -> int | float:
    """Return a whole number as an integer."""
    return int(value) if value == int(value) else value


def whole(value: float) -> str:
    """Return a number without a needless point."""
    return f"{value:.12g}"


@cache
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
        wrong = [at for at, (one, other) in enumerate(zip(word, known, strict=True)) if one != other]
        swapped = len(wrong) == 2 and wrong[1] == wrong[0] + 1 and word[wrong[0]] == known[wrong[1]] \
            and word[wrong[1]] == known[wrong[0]]
        return swapped or (len(wrong) == 1 and len(word) >= 8)
    longer, shorter = sorted((word, known), key=len, reverse=True)
    # Another ending is another form of a word.
    return len(longer) >= 5 and any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer) - 1))

