"""Convert the reports of the hook in a Python job to the job's progress."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from leadline.core.documents import parse_json
from leadline.core.errors import InvalidInput
from leadline.core.progress import LoopProgress, Progress

SCHEMA = "leadline.hook/1"
COVERS = 0.5
"""Share of a loop's time that an inner loop must take to become the next level."""
AHEAD = 1.5
"""A framework runs its own loop if it makes this many times more steps than the user's innermost loop."""


class _Work(NamedTuple):
    """The work that a report shows: its nested loops, their begin and, where known, the completed and total steps."""

    source: str
    levels: list[LoopProgress]
    began_s: float | None
    steps: int | None = None
    total: int | None = None
    chain: Sequence[dict[str, Any]] = ()
    """The script's loops, if nothing else shows the work."""


def read_hook_progress(folder: Path, start_s: float) -> Progress | None:
    """Return the progress of the process that worked longest; None if none was watched."""
    reports = [report for path in folder.glob("hook-*.json") if (report := _read(path)) is not None]
    errors = {path.read_text(encoding="utf-8", errors="replace").strip() for path in folder.glob("fault-*")}
    faults = tuple(f"a process could not be watched ({text})" for text in sorted(errors))
    if not reports:
        return Progress("hook", remarks=faults) if faults else None
    try:
        candidates = [progress_of(report, start_s) for report in reports]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return Progress("hook", remarks=(f"the hook's report could not be used ({type(error).__name__}: {error})",))

    def work(candidate: Progress) -> tuple[bool, bool, float]:
        return candidate.stopped, candidate.unit is not None, candidate.unit.total_s if candidate.unit else 0.0

    best = max(candidates, key=work)
    return replace(best, remarks=(*best.remarks, *faults))


def hook_stopped(folder: Path) -> bool:
    """True if a process of the job was stopped because the probe was done."""
    return any((_read(path) or {}).get("stopped") for path in folder.glob("hook-*.json"))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        report = parse_json(path.read_bytes(), label=path.name)
    except (OSError, InvalidInput):
        return None
    return report if isinstance(report, dict) and report.get("schema") == SCHEMA else None


def progress_of(report: dict[str, Any], start_s: float) -> Progress:
    """Return the progress in one report, of a job that began at ``start_s`` of the monotonic clock."""
    loops = {loop["number"]: loop for loop in report["loops"]}
    work = _keras(report.get("keras")) or _steps(report, loops) or _plain(loops)
    levels = work.levels
    return Progress(
        work.source,
        tuple(levels),
        startup_s=work.began_s - start_s if work.began_s is not None else None,
        last_s=report["now_s"] - start_s,
        steps=work.steps,
        epochs=levels[0].count if len(levels) > 1 and "epoch" in levels[0].name.casefold() else None,
        total=work.total,
        stopped=report["stopped"],
        method="a hook in the unmodified script",
        remarks=(*report["remarks"], *_not_reached(report, work.chain)),
    )


def _keras(fit: dict[str, Any] | None) -> _Work | None:
    if not fit or not fit["batches"]["count"]:
        return None
    epochs, batches = fit["epochs"], fit["batches"]
    length = round(fit["in_passes"] / fit["passes"]) if fit["passes"] else fit["asked_steps"]
    levels = [
        _level("epoch of fit", epochs, fit["asked_epochs"], inside_s=fit["in_epochs_s"]),
        _level("batch of fit", batches, length, passes=fit["passes"]),
    ]
    return _Work("Keras", levels, epochs["began_s"], levels[-1].count)


def _steps(report: dict[str, Any], loops: dict[int, dict[str, Any]]) -> _Work | None:
    """Return the loops around a training step, and the steps themselves if a framework loops over them."""
    steps, torch = report["steps"], report["frameworks"].get("torch", {})
    if not steps and not torch.get("backward"):
        return None
    chain = [loops[number] for number in report["chain"] if number in loops and not loops[number]["hot"]]
    levels = _levels(chain)
    began_s = chain[0]["times"]["began_s"] if chain else None
    total = None
    if steps and steps["count"] > AHEAD * (levels[-1].count + 1 if levels else 0):
        levels.append(_level("optimizer step", steps, None))
        began_s = steps["began_s"] if began_s is None else began_s
        total = torch.get("total_steps") if len(levels) == 1 else None
    # The count is of intervals between steps, one less than the steps.
    count = int(steps["count"]) + 1 if steps else None
    return _Work("PyTorch's optimizer steps", levels, began_s, count, total) if levels else None


def _plain(loops: dict[int, dict[str, Any]]) -> _Work:
    chain = _main_chain(loops)
    return _Work("the script's loops", _levels(chain), chain[0]["times"]["began_s"] if chain else None, chain=chain)


def _main_chain(loops: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the longest loop, and within it each time the loop that takes at least half of its time."""
    chain: list[dict[str, Any]] = []
    inside = [loop for loop in loops.values() if loop["parent"] not in loops]
    while inside:
        longest = max(inside, key=lambda loop: loop["spent_s"])
        if chain and (longest["spent_s"] < COVERS * chain[-1]["spent_s"] or longest["hot"] or longest["bare"]):
            break
        chain.append(longest)
        inside = [loop for loop in loops.values() if loop["parent"] == longest["number"]]
    return chain


def _levels(chain: list[dict[str, Any]]) -> list[LoopProgress]:
    levels = []
    for depth, loop in enumerate(chain):
        inner = chain[depth + 1] if depth + 1 < len(chain) else None
        length = round(loop["in_passes"] / loop["passes"]) if depth and loop["passes"] else loop["length"]
        inside_s = loop["inside_s"].get(str(inner["number"]), 0.0) if inner else 0.0
        where = f"{Path(loop['file']).name}:{loop['line']}"
        levels.append(
            _level(loop["text"], loop["times"], length, passes=loop["passes"], inside_s=inside_s, where=where)
        )
    return levels


def _level(
    name: str, times: dict[str, Any], length: int | None, *, passes: int = 0, inside_s: float = 0.0, where: str = ""
) -> LoopProgress:
    first_s, sampled_s = tuple(times["first_s"]), tuple(times["sampled_s"])
    return LoopProgress(name, times["count"], times["total_s"], length, passes, inside_s, first_s, sampled_s, where)


def _not_reached(report: dict[str, Any], chain: Sequence[dict[str, Any]]) -> list[str]:
    """Return a remark about later loops of the same function that had not begun."""
    if not chain or not report["stopped"]:
        return []
    root = chain[0]
    lines = [
        str(loop["line"])
        for loop in report["waiting"]
        if (loop["file"], loop["function"], loop["outermost"]) == (root["file"], root["function"], True)
        and loop["line"] > root["last"]
    ]
    if not lines:
        return []
    return [f"what comes after the loop of line {root['line']} was not measured: loops in lines {', '.join(lines[:5])}"]
