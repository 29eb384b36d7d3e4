"""Check the words of the project: plain sentences in docs, docstrings and messages, and names that say what they hold.

``python checks/words.py`` prints each share that is above its bound with its worst places, and exits with 1 then.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_WORDS = 30
MAX_LONG, MAX_HEADLESS, MAX_MANNERED = 0.05, 0.01, 0.02
"""Largest shares of sentences: too long, opening with a clause that has no head, or with a mannered word."""
MAX_FILLERS = 0.01
"""Largest share of identifiers that name nothing."""
MAX_REUSED_CLASSES = 5
SHOWN = 8
MANNERED = frozenset({
    "anew", "apart", "asked", "bears", "beforehand", "beside", "besides", "beyond", "deals", "dealt", "doubt",
    "foretell", "foretelling", "foretells", "foretold", "heed", "hence", "lest", "lie", "lies", "maker", "makers",
    "maker's", "nobody", "nought", "stands", "tells", "thereby", "therein", "thereof", "told", "whence", "wherever",
    "whichever", "whoever",
})  # fmt: skip
FILLERS = frozenset({
    "asked", "both", "found", "given", "held", "here", "known", "left", "made", "meant", "mine", "one", "ones", "other",
    "others", "ours", "own", "rest", "said", "seen", "so_far", "stuff", "taken", "theirs", "there", "thing", "things",
    "told", "wanted", "what",
})  # fmt: skip
HEADLESS = re.compile(r"(What|Whether|Who|Whose|Whoever|Whatever|That which)\b(?!.*\?$)")


def main() -> int:
    """Print what is above its bound; return 1 if anything is."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "src").rglob("*.py"))}
    problems = [*prose_problems(trees), *name_problems(trees)]
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    return 1 if problems else 0


def prose_problems(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield a line for each kind of text and each share of its sentences that is above the bound."""
    texts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if "_build" not in path.parts:
            prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            texts["docs"] += [(str(path.relative_to(ROOT)), sentence) for sentence in sentences(prose)]
    for path, tree in trees.items():
        docstrings = set(docstring_ids(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                kind = "docstrings" if id(node) in docstrings else "messages"
                if kind == "docstrings" or len(node.value.split()) >= 5:
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    texts[kind] += [(place, sentence) for sentence in sentences(node.value)]
    tests = {
        "longer than 30 words": (MAX_LONG, lambda words, _: len(words) > MAX_WORDS),
        "opening without a head": (MAX_HEADLESS, lambda _, sentence: HEADLESS.match(sentence)),
        "with a mannered word": (MAX_MANNERED, lambda words, _: MANNERED.intersection(map(plain_word, words))),
    }  # fmt: skip
    for kind, rows in texts.items():
        for name, (bound, is_bad) in tests.items():
            bad = [(place, sentence) for place, sentence in rows if is_bad(sentence.split(), sentence)]
            if len(bad) > bound * len(rows):
                yield f"{kind}: {len(bad) / len(rows):.1%} of the sentences are {name}; at most {bound:.0%}"
                yield from (f"    {place}: {sentence[:160]}" for place, sentence in bad[:SHOWN])


def sentences(text: str) -> list[str]:
    """Split a text into sentences of five words or more; inline code counts as a word, tables do not count."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", re.sub(r"`[^`]+`", "X", text))
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*•]|\d+\.) |\n#+ |\n\|", text)
    split = [part for block in blocks for part in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'])", " ".join(block.split()))]
    return [part.strip() for part in split if "|" not in part and len(re.findall(r"[A-Za-z]{2,}", part)) >= 5]


def plain_word(word: str) -> str:
    """Return a word in lower case, without the punctuation around it."""
    return word.strip('.,;:()!?"').lower()


def docstring_ids(tree: ast.Module) -> Iterator[int]:
    """Yield the identities of the nodes that hold docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield id(first.value)


def name_problems(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield lines for identifiers that name nothing, and for class names used more than once."""
    total, fillers, classes = 0, Counter[str](), defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            name = bound_name(node)
            if name is None:
                continue
            total += 1
            if name.strip("_").lower() in FILLERS:
                fillers[f"{name} in {path.relative_to(ROOT)}"] += 1
            if isinstance(node, ast.ClassDef) and not name.startswith("_"):
                classes[name].add(str(path.relative_to(ROOT)))
    if fillers.total() > MAX_FILLERS * total:
        yield f"names: {fillers.total() / total:.1%} of the identifiers are fillers; at most {MAX_FILLERS:.0%}"
        yield from (f"    {count} × {place}" for place, count in fillers.most_common(SHOWN))
    reused = {name: places for name, places in classes.items() if len(places) > 1}
    if len(reused) > MAX_REUSED_CLASSES:
        yield f"names: {len(reused)} class names are used more than once; at most {MAX_REUSED_CLASSES}"
        yield from (f"    {name}: {', '.join(sorted(places))}" for name, places in sorted(reused.items()))


def bound_name(node: ast.AST) -> str | None:
    """Return the identifier that a node binds; None if it binds none."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None


if __name__ == "__main__":
    sys.exit(main())
