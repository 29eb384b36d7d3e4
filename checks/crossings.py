"""Count how often one estimate of a ``config.json`` calls from one room into another, and bound it.

``python checks/crossings.py [SRC]`` runs the estimate in this process on the package in ``SRC`` (``src`` by default). A
room is a folder directly in ``leadline``. The first edition of the code made 759 such calls and executed 183 files.
"""

import contextlib
import gc
import io
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType

MAX_CROSSINGS = 189
"""A quarter of the 759 calls of the first edition."""
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
SHOWN = 10


class CrossingCounter:
    """A profile function that counts the calls whose caller and callee are in different rooms."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}{os.sep}"
        self.calls: Counter[tuple[str | None, str]] = Counter()
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call; code outside the package is looked through."""
        callee = self.room(frame) if event == "call" else None
        if callee is None:
            return
        self.files.add(frame.f_code.co_filename)
        caller = frame.f_back
        while caller is not None and self.room(caller) is None:
            caller = caller.f_back
        if caller is not None and self.room(caller) != callee:
            self.calls[self.room(caller), callee] += 1

    def room(self, frame: FrameType) -> str | None:
        """Return the room of the code of a frame; None outside the package."""
        file = frame.f_code.co_filename
        return Path(file[len(self._package) :]).parts[0] if file.startswith(self._package) else None


def main() -> int:
    """Print the count and its largest parts; return 1 if it is above the bound."""
    source = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src").resolve()
    sys.path.insert(0, str(source))
    counter = CrossingCounter(source / "leadline")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEADLINE_DATA_DIR"] = folder
        # The catalog is parsed, whether or not this user has it in the cache.
        os.environ["XDG_CACHE_HOME"] = folder
        # Finalizers run wherever garbage happens to be collected, and nobody calls them.
        gc.disable()
        config = Path(folder, "config.json")
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        from leadline.interfaces.cli.main import main as leadline  # noqa: PLC0415 - of the folder that was named

        words = ["estimate", str(config), "--batch", "4", "--seq", "2048", "--on", "A100 SXM4 80GB", "--json"]
        with contextlib.redirect_stdout(io.StringIO()):
            sys.setprofile(counter)
            try:
                leadline(words)
            finally:
                sys.setprofile(None)
    total = counter.calls.total()
    sys.stdout.write(f"{total} calls between rooms, at most {MAX_CROSSINGS}; {len(counter.files)} files executed\n")
    for (caller, callee), count in counter.calls.most_common(SHOWN):
        sys.stdout.write(f"  {count:5d} {caller or 'top'} -> {callee or 'top'}\n")
    return int(total > MAX_CROSSINGS)


if __name__ == "__main__":
    sys.exit(main())
