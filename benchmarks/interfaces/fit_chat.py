"""Fit the chat without a model to the development questions: ``python -m benchmarks.interfaces.fit_chat``.

``--cross-validate`` prints instead what a fit to the other sets makes of each set, so that a change can be chosen
without asking the held-out sets. It takes about 6 s for each set, and ``--sets N`` leaves out only the first N by name.
"""

import argparse
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from benchmarks.interfaces.questions import FOLDER, Judged, call_before, judge
from leadline.app.composition import user_catalog
from leadline.files.atomic import write_atomically
from leadline.interfaces.chat import intent
from leadline.interfaces.chat.intent import REFUSED, Learned, features
from leadline.interfaces.chat.language import normal
from leadline.interfaces.chat.question import Question

FILE = Path(intent.__file__).with_name("learned.json")
LEAST_QUESTIONS = 2
"""A feature of fewer questions is left out."""
STRENGTH = 1.0
"""Inverse strength of the L2 penalty."""


Asked = tuple[Question, str]
"""A question and the tool that answers it; empty if none does."""


def ask(questions: Sequence[Mapping[str, Any]], systems: Sequence[str]) -> list[Asked]:
    """Return the questions of a set, each after the right call of the one before."""
    by_id = {question["id"]: question for question in questions}
    # Orders that would skip the user's consent are refused by their own cues; their tools are no other class.
    return [
        (Question(normal(question["text"]), call_before(question, by_id), systems), question.get("tool", ""))
        for question in questions
        if question.get("refuse") != "injection"
    ]


def fit(questions: Sequence[Asked]) -> Learned:
    """Return a logistic regression of the tools on the features, and the words of questions that have an answer."""
    found = [features(question) for question, _ in questions]
    counts = Counter(feature for names in found for feature in names)
    rows = [{name: 1.0 for name in names if counts[name] >= LEAST_QUESTIONS} for names in found]
    vectorizer = DictVectorizer()
    table = vectorizer.fit_transform(rows)
    model = LogisticRegression(C=STRENGTH, max_iter=1000).fit(table, [tool or REFUSED for _, tool in questions])
    weights = np.rint(100 * model.coef_).astype(int).T.tolist()
    known = {word for question, tool in questions if tool for word in question.left_words()}
    return Learned(
        model.classes_.tolist(), np.rint(100 * model.intercept_).astype(int).tolist(),
        dict(zip(vectorizer.get_feature_names_out().tolist(), weights, strict=True)), known,
    )  # fmt: skip


def distinct(questions: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of questions that differ in more than their case and spaces."""
    return len({(" ".join(each["text"].casefold().split()), each.get("after")) for each in questions})


def shares(name: str, judged: Sequence[Judged]) -> str:
    """Return a line: the shares of questions with the right tool and arguments, and of those rightly refused."""
    parts = []
    for kind in ("right in tool and arguments", "refused"):
        part = [each for each in judged if ("refuse" in each.question) == (kind == "refused")]
        right = sum(each.right for each in part)
        share = f"{right / len(part):.1%}" if part else "none asked"
        parts.append(f"{kind} {share} ({right} of {len(part)}, n = {distinct([each.question for each in part])})")
    return f"{name}: {', '.join(parts)}"


def cross_validate(sets: Mapping[str, Sequence[Mapping[str, Any]]], systems: Sequence[str], most: int | None) -> None:
    """Print the shares of each of the first ``most`` sets after a fit to all others, and of these sets together."""
    asked = {name: ask(questions, systems) for name, questions in sets.items()}
    judged: list[Judged] = []
    for name in list(sets)[:most]:
        others = [one for other, members in asked.items() if other != name for one in members]
        left_out = judge(sets[name], systems, fit(others))
        print(shares(name, left_out), flush=True)  # noqa: T201
        judged += left_out
    print(shares("all", judged))  # noqa: T201


def main() -> None:
    """Fit and write, or cross-validate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cross-validate", action="store_true", help="fit to all sets but one, print, write nothing")
    parser.add_argument("--sets", type=int, metavar="N", help="with --cross-validate: leave out only the first N sets")
    options = parser.parse_args()
    if options.sets is not None and not (options.cross_validate and options.sets > 0):
        parser.error(f"--sets {options.sets}: give a number from 1 on, and --cross-validate")
    systems = [system.name for system in user_catalog().systems()]
    files = sorted(FOLDER.glob("development-*.toml"))
    sets = {file.stem: tomllib.loads(file.read_text(encoding="utf-8"))["question"] for file in files}
    if options.cross_validate:
        cross_validate(sets, systems, options.sets)
        return
    model = fit([one for questions in sets.values() for one in ask(questions, systems)])
    write_atomically(FILE, msgspec.json.encode(model, order="sorted").decode() + "\n")


if __name__ == "__main__":
    main()
