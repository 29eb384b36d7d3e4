"""Stand-ins for Slurm's commands, first on PATH, that hang, die, refuse or ask as another user on order."""

import os
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.plane.fault_staff import AS_OPERATOR
from leadline.core.errors import InvalidInput

SBATCH_FAULTS = ("hangs before", "hangs after", "late", "dies after", "dies before")
SACCT_FAULTS = ("disabled", "hangs")

SBATCH = """\
#!/bin/sh
# Each order is for one call: whoever renames it has it.
for order in "{orders}"/sbatch.*; do
  taken="{orders}/used.${{order##*/}}.$$"
  mv "$order" "$taken" 2>/dev/null || continue
  case $(cat "$taken") in
    "hangs before") exec sleep 600 ;;
    "hangs after") "{real}" "$@" >/dev/null 2>&1; exec sleep 600 ;;
    "late") cat > "$taken.script"
            setsid sh -c 'sleep {late_s}; exec "$@" < "$0"' "$taken.script" "{real}" "$@" >/dev/null 2>&1 </dev/null &
            exec sleep 600 ;;
    "dies after") "{real}" "$@" >/dev/null 2>&1; kill -9 $$ ;;
    "dies before") kill -9 $$ ;;
  esac
done
exec "{real}" "$@"
"""
SACCT = """\
#!/bin/sh
case $(cat "{orders}/sacct" 2>/dev/null) in
  "disabled") : > "{orders}/used.sacct.$$"
              echo "Slurm accounting storage is disabled" >&2; exit 1 ;;
  "hangs") : > "{orders}/used.sacct.$$"; exec sleep 600 ;;
esac
exec "{real}" "$@"
"""
SQUEUE = """\
#!/bin/sh
if [ -e "{orders}/ordinary" ]; then
  exec {as_ordinary} "{real}" "$@"
fi
exec "{real}" "$@"
"""
"""Root sees hidden partitions, so this asks as a user who does not."""
LATE_S = 9.0
"""Delay of a submission that reaches Slurm after its sender was ended."""


@dataclass(slots=True)
class SlurmShims:
    """The stand-ins in a folder and their orders."""

    folder: Path
    _numbers: "count[int]"

    @property
    def orders(self) -> Path:
        """Return the folder of the orders."""
        return self.folder / "orders"

    def order_sbatch(self, fault: str) -> None:
        """Make the next call of sbatch fail in this way."""
        order = self.orders / f"sbatch.{next(self._numbers):04}"
        new = order.with_name(f".{order.name}")
        new.write_text(fault, encoding="ascii")
        new.replace(order)

    def order_sacct(self, fault: str | None) -> None:
        """Make all calls of sacct fail in this way, or none."""
        if fault is None:
            (self.orders / "sacct").unlink(missing_ok=True)
        else:
            (self.orders / "sacct").write_text(fault, encoding="ascii")

    def ask_as_ordinary_user(self, *, ordinary: bool) -> None:
        """Let squeue ask as an ordinary user, or as the plane's own."""
        order = self.orders / "ordinary"
        if ordinary:
            order.touch()
        else:
            order.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Withdraw all pending orders."""
        self.order_sacct(None)
        self.ask_as_ordinary_user(ordinary=False)
        for order in self.orders.glob("sbatch.*"):
            order.unlink(missing_ok=True)

    def used(self) -> dict[str, int]:
        """Return the number of executed orders by command."""
        names = [path.name.split(".")[1] for path in self.orders.glob("used.*") if path.suffix != ".script"]
        return {command: names.count(command) for command in ("sbatch", "sacct")}


def make_shims(folder: Path, path: str) -> SlurmShims:
    """Write stand-ins for the commands on ``path`` into a folder.

    Raises:
        InvalidInput: A command is missing.
    """
    shims = SlurmShims(folder, count())
    shims.orders.mkdir(parents=True)
    for name, text in (("sbatch", SBATCH), ("sacct", SACCT), ("squeue", SQUEUE)):
        real = shutil.which(name, path=path)
        if real is None:
            raise InvalidInput(f"there is no {name} on {path}: install Slurm's commands")
        shim = folder / name
        shim.write_text(
            text.format(orders=shims.orders, real=real, late_s=LATE_S, as_ordinary=" ".join(AS_OPERATOR)),
            encoding="utf-8",
        )
        shim.chmod(0o755)
    return shims


def first_on_path(folder: Path, path: str) -> str:
    """Return a PATH that begins with the stand-ins of a folder."""
    return os.pathsep.join([str(folder), path])
