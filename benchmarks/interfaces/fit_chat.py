"""Fit the chat without a model to the development questions: ``python -m benchmarks.interfaces.fit_chat``.

``--cross-validate`` prints instead how many questions of each set are right after a fit to the other sets.
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

from benchmarks.interfaces.questions import FOLDER, call_before, judge
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


def main() -> None:
    """Fit and write, or cross-validate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cross-validate", action="store_true")
    systems = [system.name for system in user_catalog().systems()]
    sets = {
        file.stem: tomllib.loads(file.read_text(encoding="utf-8"))["question"]
        for file in sorted(FOLDER.glob("development-*.toml"))
    }
    asked = {name: ask(questions, systems) for name, questions in sets.items()}
    if not parser.parse_args().cross_validate:
        model = fit([one for questions in asked.values() for one in questions])
        document = msgspec.json.encode(model, order="sorted")
        write_atomically(FILE, document.decode() + "\n")
        return
    for name, questions in sets.items():
        others = [one for other, members in asked.items() if other != name for one in members]
        judged = judge(questions, systems, fit(others))
        answered = [one for one in judged if "refuse" not in one.question]
        refused = [one for one in judged if "refuse" in one.question]
        right = [sum(one.right for one in part) for part in (answered, refused)]
        print(f"{name}: {right[0]} of {len(answered)} answered, {right[1]} of {len(refused)} refused")  # noqa: T201


if __name__ == "__main__":
    main()
