"""Prepare the public scripts: ``python -m benchmarks.public_scripts fetch DIR``, then ``count DIR``."""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_low

from benchmarks.public_scripts.corpus import COUNTS, PublicScript, Repository, public_scripts
from benchmarks.public_scripts.recipes import RECIPES
from leadline.core.errors import LeadlineError
from leadline.execution.processes import run_process
from leadline.graphs.frameworks import script_framework
from leadline.graphs.torch.command import read_command

COUNTERS = {"torch": "real_facts.py", "jax": "jax_facts.py"}
COUNT_TIMEOUT_S = 240.0


def main(arguments: Sequence[str]) -> int:
    """Fetch repositories and write data sets, or count the facts in real runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public_scripts", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    fetch_parser = verbs.add_parser("fetch", help="clone the repositories and write the data sets")
    count_parser = verbs.add_parser("count", help="run the scripts for real and write what they do")
    for verb in (fetch_parser, count_parser):
        verb.add_argument("data", type=Path, metavar="DIR", help="the folder of the scripts and their data")
        verb.add_argument("names", nargs="*", help="beginnings of the names of scripts; all without any")
    fetch_parser.add_argument("--from", dest="mirrors", type=Path, metavar="FOLDER", help="clone from copies in here")
    fetch_parser.add_argument("--install", action="store_true", help="make the scripts' environments, too")
    count_parser.add_argument("--steps", type=int, default=3, help="steps to count; 0 counts those of the whole run")
    options = parser.parse_args(arguments)
    scripts = public_scripts(tuple(options.names))
    if options.verb == "fetch":
        return fetch(scripts, options.data, options.mirrors, install=options.install)
    return count(scripts, options.data, options.steps)


def fetch(scripts: Sequence[PublicScript], data: Path, mirrors: Path | None, *, install: bool = False) -> int:
    """Clone the repositories at their commits, write the data sets and link them; return 1 if something failed.

    Environments that are missing are made with ``install``, and otherwise named with the command that makes them.

    Raises:
        LeadlineError: An environment could not be made.
    """
    failures = []
    for repository in {script.repository.name: script.repository for script in scripts}.values():
        try:
            _clone(repository, data, mirrors)
        except LeadlineError as error:
            failures.append(f"{repository.name}: {error}")
    _make_environments(scripts, data, install=install)
    folder = data / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted({recipe for script in scripts for recipe in script.recipes}):
        mark = folder / f".{name}"
        if not mark.exists():
            RECIPES[name](folder)
            if name != "checksums":  # the environment may be made, or made anew, later
                mark.touch()
    for script in scripts:
        _link(script, data)
    sys.stderr.writelines(f"not fetched: {failure}\n" for failure in failures)
    return 1 if failures else 0


def _make_environments(scripts: Sequence[PublicScript], data: Path, *, install: bool) -> None:
    for venv in sorted({script.venv for script in scripts if not (data / script.venv).exists()}):
        common = {"torch", "torchvision"} if venv == "venv" else set()
        packages = common.union(*(script.packages for script in scripts if script.venv == venv))
        folder = data.absolute() / venv
        commands = ["python3", "-m", "venv", str(folder)], [f"{folder}/bin/pip", "install", *sorted(packages)]
        if not install:
            words = " && ".join(map(shlex.join, commands))
            sys.stdout.write(f"make the environment next: {words}; then fetch again (--install does both)\n")
            continue
        for command in commands:
            done = run_process(command)
            if done.returncode:
                raise LeadlineError(f"{shlex.join(command[:3])} failed: {done.stderr.strip()}")


def count(scripts: Sequence[PublicScript], data: Path, steps: int) -> int:
    """Run the scripts for real and add what they do to the committed counts; return 1 if one failed."""
    failed = False
    for script in scripts:
        try:
            counted = run_counter(script, data, steps)
        except LeadlineError as error:
            failed = True
            sys.stderr.write(f"{script.name}: {error}\n")
            continue
        sys.stdout.write(f"{script.name}: {json.dumps(counted)}\n")
        sys.stdout.flush()
        if steps:
            counts = json.loads(COUNTS.read_text(encoding="utf-8"))
            kept = {name: counted.get(name) for name in ("parameters", "frozen")}
            # the first step may also draw samples or fill caches
            counts[script.name] = kept | {"flops": median_low(counted["flops"]) if counted.get("flops") else None}
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(counts.items()))
            COUNTS.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
    return 1 if failed else 0


def run_counter(script: PublicScript, data: Path, steps: int) -> dict[str, list[int]]:
    """Run a script on this CPU under the counter, in a copy of its repository.

    Raises:
        LeadlineError: It made no step.
    """
    words = list(script.command(data))
    command = replace(read_command(tuple(words)), variables=tuple(script.variables.items()))
    counter = Path(__file__).parents[1] / "measured" / COUNTERS[script_framework(command, script.cwd(data))]
    start = next(n for n, word in enumerate(words) if word.endswith(".py") or (n == 1 and word == "-m"))
    with tempfile.TemporaryDirectory(prefix="leadline-count-") as folder, script.copied(data) as cwd:
        out = Path(folder, "out.json")
        done = run_process(
            [*words[:start], str(counter), str(out), str(steps), *words[start:]],
            env={"WANDB_MODE": "disabled", **script.environment(cwd, data)},
            cwd=cwd,
            timeout_s=COUNT_TIMEOUT_S,
        )
        if done.timed_out:
            raise LeadlineError(f"it was still running after {COUNT_TIMEOUT_S:g} s")
        if not out.exists():
            raise LeadlineError("\n".join(done.stderr.strip().splitlines()[-6:]) or "it printed no error")
        counted: dict[str, list[int]] = json.loads(out.read_text(encoding="utf-8"))
    return counted


def _clone(repository: Repository, data: Path, mirrors: Path | None) -> None:
    """Check a repository out at its commit, from the network or from a copy in ``mirrors``."""
    target = repository.folder(data)
    if (target / ".fetched").exists():
        return
    source = repository.url
    if mirrors is not None:
        copies = [path for path in (mirrors / target.name).rglob("HEAD") if (path.parent / "objects").is_dir()]
        source = str(copies[0].parent.absolute()) if copies else source
    target.parent.mkdir(parents=True, exist_ok=True)
    filters = [] if mirrors else ["--filter=blob:none"]
    _git("clone", "--quiet", "--no-checkout", *filters, source, str(target))
    if repository.folders:
        _git("-C", str(target), "sparse-checkout", "set", *repository.folders)
    _git("-C", str(target), "checkout", "--quiet", repository.commit)
    (target / ".fetched").touch()


def _git(*words: str) -> None:
    done = run_process(["git", *words])
    if done.returncode:
        raise LeadlineError(done.stderr.strip())


def _link(script: PublicScript, data: Path) -> None:
    """Link the data where the script looks for it."""
    for link in script.links:
        place, _, source = link.partition("=")
        path, content = script.cwd(data) / place, (data / "data" / source).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        is_kept = path.is_dir() and not path.is_symlink()  # the repository keeps the folder, for files to be put into
        for inside, file in [(path / item.name, item) for item in content.iterdir()] if is_kept else [(path, content)]:
            if not inside.is_symlink() and not inside.exists():
                inside.symlink_to(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
