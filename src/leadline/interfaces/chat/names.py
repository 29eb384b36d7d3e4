"""Read names from a question: workloads, places, jobs, runs, models, campaigns, pipelines and commands."""

import re
from collections.abc import Callable, Collection, Sequence

from leadline.core.documents import split_command
from leadline.core.errors import InvalidInput
from leadline.interfaces.chat import cues
from leadline.interfaces.chat.slots import Reading


def read_workload(reading: Reading) -> None:
    """Read the name of a workload: a file or a model of the hub."""
    for cue in ("file", "hub"):
        for match in reading.take(cue):
            reading.put("workload", match[0].rstrip("."), match.start())
            return


def read_places(
    reading: Reading, systems: Collection[str], is_requested: Callable[[int], bool]
) -> list[tuple[str, str]]:
    """Return the places in the order of the text, each with its kind: device, system or local.

    Args:
        reading: the text.
        systems: names of the systems in the catalog.
        is_requested: tells whether a position is in the request, where other systems and this machine count.
    """
    places: list[tuple[int, str, str]] = []
    names = "|".join(map(re.escape, sorted({*systems, *cues.words("outside")}, key=len, reverse=True)))
    named = re.compile(rf"(?<![\w/.-])(?:the )?({names})('s)?(?::([\w-]+))?(?:'s)?(?![\w/])(?!-\w)", re.IGNORECASE)
    for match in reading.take_patterns([named], all_of_them=True):
        partition = match[3] or ""
        places.append((match.start(), f"{match[1]}:{partition}" if partition else match[1], "system"))
    places += [(match.start(), match[0], "system") for match in reading.take("slurm-place", all_of_them=True)]
    devices = reading.take("device-name", all_of_them=True)
    places += [(match.start(), _device(match[0]), "device") for match in devices]
    here = [match.start() for match in reading.take("local", all_of_them=True)]
    places += [(at, "local", "local") for at in here if is_requested(at)]
    for match in reading.take("unknown-place"):
        is_name = match[1].lower() not in cues.words("no-names") and match[1][:1].isupper()
        if is_name and is_requested(match.start()):
            places.append((match.start(), match[1], "system"))
        else:
            reading.give_back(match)
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for _, name, kind in sorted(places):
        first.setdefault((name.lower(), kind), (name, kind))
    return list(first.values())


def _device(text: str) -> str:
    name = re.sub(r"\s?(?:gpus?|cards?|accelerators?|instances?)$", "", text, flags=re.IGNORECASE)
    name = re.sub(r"(?<=\d)s$", "", name) if not re.search("[lL]40s$", name) else name
    name = re.sub(r"^(?:nvidia|amd|tesla|geforce|google|instinct)[ -]", "", name, flags=re.IGNORECASE)
    return name.replace("(", "").replace(")", "").strip()


def read_jobs(reading: Reading, systems: Collection[str], *, about_jobs: bool) -> list[str]:
    """Return the names and ids of jobs in the order of the text.

    Args:
        reading: The text.
        systems: names that are those of systems.
        about_jobs: Whether the sentence is about jobs, so that a bare number may be its id.
    """
    named: list[tuple[int, str]] = []
    bare: list[tuple[int, str]] = []
    for match in reading.take("job-name", all_of_them=True):
        if (
            (match[1].isalpha() and match[0].lower().startswith("jobs"))
            or match[1].lower() in cues.words("no-names")
            or match[1].endswith(("ing", "ed", "'s"))
        ):
            reading.give_back(match)
        else:
            named.append((match.start(), match[1]))
    for cue in ("quoted", "name", *(("job-id", "numbered") if about_jobs else ())):
        for match in reading.take(cue, all_of_them=True):
            name = match[1] if match.re.groups else match[0]
            if name.lower() in {system.lower() for system in systems}:
                reading.give_back(match)
            else:
                bare.append((match.start(), name))
    return list(dict.fromkeys(name for _, name in [*named, *sorted(bare)]))


def read_command(reading: Reading, *, quoted: bool) -> Sequence[str]:
    """Return the command of a submission as words, or only a ``quoted`` one; empty without one."""
    for cue in ("quoted-command",) if quoted else ("quoted-command", "command"):
        for match in reading.take(cue):
            try:
                return split_command(match[1].rstrip(",."), label="command")
            except InvalidInput:
                return ()
    return ()
