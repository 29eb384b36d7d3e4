"""List results whose measured code changed after their commit: ``python -m benchmarks.stale [--strict]``.

Only code counts: a file whose docstrings, comments or formatting changed is the same code, and so is a moved one.
"""

import argparse
import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.provenance import DIRTY, ROOT, git

RESULTS = ROOT / "benchmarks" / "results"
SHOWN = 3
"""Changed files that a warning names."""


@dataclass(frozen=True, slots=True)
class StaleResult:
    """A result that may no longer hold, and why."""

    file: str
    reason: str

    def __str__(self) -> str:
        """Return the warning."""
        return f"{self.file} is stale: {self.reason}"


class _Provenance(msgspec.Struct):
    bench: str = ""
    commit: str = ""
    measures: tuple[str, ...] = ()


def stale_results(folder: Path = RESULTS, root: Path = ROOT) -> list[StaleResult]:
    """Return the stale results of a folder, by file name."""
    reasons = {path.name: stale_reason(path, root) for path in sorted(folder.glob("*.json"))}
    return [StaleResult(name, reason) for name, reason in reasons.items() if reason]


def stale_reason(path: Path, root: Path = ROOT) -> str:
    """Return why a result is stale; empty if its measured code is what it was."""
    result = msgspec.json.decode(path.read_bytes(), type=_Provenance)
    rerun = f"run python3 dev bench {result.bench or path.stem} --json {path.name} again"
    if not result.commit or not result.measures:
        return f"no commit is recorded in it; {rerun}"
    if result.commit.endswith(DIRTY):
        return f"its code was not committed when it ran (after {result.commit[:7]}); {rerun}"
    if git(root, "cat-file", "-e", f"{result.commit}^{{commit}}") is None:
        return f"its commit {result.commit[:7]} is not in this clone; fetch the full history"
    changed = changed_code(result.commit, result.measures, root)
    if not changed:
        return ""
    names = ", ".join(changed[:SHOWN]) + (", ..." if len(changed) > SHOWN else "")
    return f"{len(changed)} measured files changed since {result.commit[:7]} ({names}); {rerun}"


def changed_code(commit: str, measures: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return the measured files whose code differs between a commit and the working tree."""
    listing = git(root, "diff", "--name-status", "--no-renames", commit, "--", *measures) or ""
    old, new = {}, {}
    for line in listing.splitlines():
        status, _, name = line.partition("\t")
        if status != "A":
            old[name] = _code(name, git(root, "show", f"{commit}:{name}"))
        if status != "D":
            new[name] = _code(name, (root / name).read_text(encoding="utf-8", errors="replace"))
    # by content, not by name: a moved file is the same code
    changed = [name for name, code in new.items() if code not in old.values()]
    return changed + [name for name, code in old.items() if name not in new and code not in new.values()]


def _code(name: str, source: str | None) -> str:
    """Return a text that is equal for files that differ in comments, docstrings and layout alone."""
    try:
        tree = ast.parse(source or "") if name.endswith(".py") else None
    except SyntaxError:
        tree = None
    if tree is None:
        return source or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # a string that stands alone is documentation, also below a constant
            node.body = [child for child in node.body if not _is_text(child)]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def main(arguments: Sequence[str]) -> int:
    """Print a warning for each stale result; exit with 1 only under ``--strict``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stale", description="List stale results.")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a result is stale")
    options = parser.parse_args(arguments)
    stale = stale_results()
    for result in stale:
        sys.stderr.write(f"warning: {result}\n")
    return 1 if options.strict and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
