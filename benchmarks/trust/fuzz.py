"""Feed damaged inputs to every reader: each ends in an answer or in one clear sentence, soon and in bounded memory.

``python -m benchmarks.trust.fuzz [--inputs N] [--seed N] [--reader NAME]`` prints one input of each distinct fault.
"""

import argparse
import multiprocessing
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.results import BenchmarkRow, at_most
from benchmarks.temporary import temporary_files
from benchmarks.trust.mutations import mutate
from benchmarks.trust.readers import Reader, all_readers, put_input
from leadline.core.errors import LONGEST_MESSAGE, LeadlineError

INPUTS, QUICK_INPUTS = 24_000, 600
LIMIT_S, SLEEP_LIMIT_S = 10, 120
"""Most processor time of one input, and the most wall-clock time, for readers that wait."""
LIMIT_BYTES = 2**31
WORKERS = 2
BATCH = 200
SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged input, made again from its numbers."""

    reader: str
    number: int
    seed: int

    def content(self) -> bytes:
        """Return the damaged content."""
        reader = all_readers()[self.reader]
        draw = random.Random(f"{self.seed}/{self.reader}/{self.number}")  # noqa: S311 - an input to repeat
        corpus = reader.corpus()
        return mutate(corpus[self.number % len(corpus)], reader.form, draw)


@dataclass(frozen=True, slots=True)
class Fault:
    """A reader's failure on one input: ``kind`` is bare, hang, memory or message."""

    case: Case
    kind: str
    what: str


@dataclass(slots=True)
class FuzzResult:
    """Number of inputs and readers, and all faults."""

    inputs: int = 0
    refused: int = 0
    readers: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def distinct(self) -> dict[tuple[str, str, str], list[Fault]]:
        """Return the faults by reader, kind and place."""
        groups: dict[tuple[str, str, str], list[Fault]] = defaultdict(list)
        for fault in self.faults:
            groups[fault.case.reader, fault.kind, fault.what.partition("\n")[0]].append(fault)
        return groups


def plan(inputs: int, seed: int, readers: Sequence[Reader]) -> list[list[Case]]:
    """Return batches of cases, in proportion to the weights of the readers."""
    usable = [reader for reader in readers if reader.corpus()]
    total = sum(reader.weight for reader in usable)
    batches: list[list[Case]] = []
    for reader in usable:
        cases = [Case(reader.name, number, seed) for number in range(-(-inputs * reader.weight // total))]
        batches += [cases[start : start + BATCH] for start in range(0, len(cases), BATCH)]
    return batches


def try_input(reader: Reader, path: Path) -> tuple[str, str]:
    """Read a file, and return ("", ""), or the kind of fault and what happened; a refusal is ("refused", "")."""
    try:
        reader.read(path)
    except LeadlineError as error:
        return ("message", f"{str(error)[:80]!r}") if _is_unclear(str(error)) else ("refused", "")
    except MemoryError as error:
        return "memory", _place(error)
    except Exception as error:  # noqa: BLE001 - to find any is the purpose
        return "bare", _place(error)
    return "", ""


@temporary_files("leadline-fuzz-")
def fuzz(batches: Sequence[Sequence[Case]], *, limit_s: float = LIMIT_S) -> FuzzResult:
    """Try all cases in worker processes; one that dies or hangs is replaced, and its input counted."""
    context = multiprocessing.get_context("fork")
    result = FuzzResult()
    waiting = list(reversed(batches))
    running: dict[Connection, tuple[BaseProcess, list[Case]]] = {}
    while waiting or running:
        while waiting and len(running) < WORKERS:
            batch = list(waiting.pop())
            ours, theirs = context.Pipe(duplex=False)
            worker = context.Process(target=_work, args=(batch, theirs, limit_s), daemon=True)
            worker.start()
            theirs.close()
            running[ours] = worker, batch
        ready = wait(list(running))
        for connection in [connection for connection in running if connection in ready]:
            process, batch = running[connection]
            try:
                kind, what = connection.recv()
            except EOFError:
                del running[connection]
                process.join()
                if not batch:
                    continue
                kind, what = _death(process.exitcode or 0)
                if batch[1:]:
                    waiting.append(batch[1:])
            case = batch.pop(0)
            result.inputs += 1
            result.readers.add(case.reader)
            result.refused += kind == "refused"
            if kind not in ("", "refused"):
                result.faults.append(Fault(case, kind, what))
    return result


def rows(*, quick: bool = False, seed: int = 1) -> list[BenchmarkRow]:
    """Return the rows of hostile input for ``bench trust``."""
    result = fuzz(plan(QUICK_INPUTS if quick else INPUTS, seed, list(all_readers().values())))
    kinds = Counter(fault.kind for fault in result.faults)
    how = "; ".join(_describe(faults) for faults in list(result.distinct().values())[:5])
    count = f"{result.inputs} inputs of {len(result.readers)} readers, {result.refused} refused"
    labels = {
        "bare": "bare exceptions",
        "hang": f"inputs beyond {LIMIT_S} s",
        "memory": "inputs beyond 2 GiB",
        "message": "unclear messages",
    }
    return [
        at_most(f"damaged inputs: {label}", kinds[kind], 0, "faults", n=result.inputs, how=how or count)
        for kind, label in labels.items()
    ]


def _work(cases: Sequence[Case], answers: Connection, limit_s: float) -> None:
    """Try cases in a process that the kernel ends at the limits; send one answer for each."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (max(used, mapped) + LIMIT_BYTES, resource.RLIM_INFINITY))
    for name in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(name, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="leadline-fuzz-") as folder:
        for number, case in enumerate(cases):
            reader, content = all_readers()[case.reader], case.content()
            place = Path(folder, str(number))
            signal.setitimer(signal.ITIMER_PROF, limit_s)
            signal.setitimer(signal.ITIMER_REAL, SLEEP_LIMIT_S)
            answer = try_input(reader, put_input(reader, content, place, case.number))
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            answers.send(answer)
            shutil.rmtree(place, ignore_errors=True)


def _death(exit_code: int) -> tuple[str, str]:
    if exit_code in (-signal.SIGPROF, -signal.SIGALRM):
        return "hang", "ended at the limit"
    return ("memory", "killed") if exit_code == -signal.SIGKILL else ("bare", f"the process ended with {exit_code}")


def _is_unclear(message: str) -> bool:
    """Return whether a message is empty, too long, or has characters that a terminal obeys."""
    return not message.strip() or len(message) > LONGEST_MESSAGE + 100 or not message.replace("\n", "").isprintable()


def _place(error: BaseException) -> str:
    """Return the error with the innermost line of Leadline, then the traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(SOURCE))]
    place = f"{Path(frames[-1].filename).relative_to(SOURCE)}:{frames[-1].lineno}" if frames else "outside"
    trace = "".join(traceback.format_tb(error.__traceback__)[-4:])
    return f"{type(error).__name__} at {place}\n{str(error)[:200]}\n{trace}"


def _describe(faults: Sequence[Fault]) -> str:
    first = faults[0]
    case, where = first.case, first.what.partition("\n")[0]
    return f"{case.reader} {case.number}: {first.kind}, {where} ({len(faults)} ×)"


def _reports(result: FuzzResult) -> Iterator[str]:
    for faults in result.distinct().values():
        first = faults[0]
        trace = first.what.partition("\n")[2][-1200:]
        yield f"--- {_describe(faults)}\n{trace}\ninput: {first.case.content()[:300]!r}\n"


def main() -> int:
    """Fuzz the readers and print the first input of each distinct fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=QUICK_INPUTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", action="append", default=[], help="part of the name of a reader")
    options = parser.parse_args()
    readers = [
        reader
        for reader in all_readers().values()
        if not options.reader or any(part.casefold() in reader.name.casefold() for part in options.reader)
    ]
    result = fuzz(plan(options.inputs, options.seed, readers))
    sys.stdout.writelines(_reports(result))
    sys.stdout.write(f"{result.inputs} inputs, {result.refused} refused, {len(result.faults)} faults\n")
    return bool(result.faults)


if __name__ == "__main__":
    sys.exit(main())
