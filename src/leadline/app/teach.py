"""Learn from the finished runs of some applications in a process of its own: ``python -m leadline.app.teach``.

It reads their names as JSON and prints ``Taught``: fitting takes memory and time that whoever asks is to keep.
"""

import os
import sys
from dataclasses import dataclass

from leadline.app.learn import Lesson, learn
from leadline.core.documents import dump, load
from leadline.core.errors import LeadlineError

NICENESS = 10


@dataclass(frozen=True, slots=True)
class Taught:
    """What was decided, and for each application of which nothing could be learned a sentence that says why."""

    lessons: tuple[Lesson, ...] = ()
    failures: tuple[str, ...] = ()


def teach(applications: tuple[str, ...]) -> Taught:
    """Learn from the runs of each application; one that fails does not keep the others from it."""
    lessons: list[Lesson] = []
    failures: list[str] = []
    for name in applications:
        try:
            lessons += learn(application=name)
        except LeadlineError as error:
            failures.append(f"nothing could be learned of {name}: {error}")
    return Taught(tuple(lessons), tuple(failures))


def main() -> int:
    """Answer one question, out of the way of whatever else runs here."""
    os.nice(NICENESS)
    try:
        applications = load(sys.stdin.read(), tuple[str, ...], what="the question")
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(dump(teach(applications), indent=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
