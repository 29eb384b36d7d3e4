"""Read names from a question: workloads, places, jobs, runs, models, campaigns and commands."""

import re
from collections.abc import Collection, Sequence

from leadline.core.documents import split_command
from leadline.core.errors import InvalidInput
from leadline.interfaces.chat.slots import Reading

FILE = r"(?<![\w/.~-])(?:[~.]{0,2}/)?(?:[\w.+-]+/)*[\w.+-]+\.(?:py|json|onnx|toml|yaml|yml|hlo|pb|txt|npz|ipynb|pt2?|sh)\b(?!\w)"
HUB = r"(?<![\w/.-])(?!(?:and|or|w|n|input|output|train|training|time|cost|tokens?|samples?|yes|client|server|his|her|he|she|tcp|i|km|node|gpu|s)/)[A-Za-z][\w-]*/[A-Za-z][\w.-]*[\w](?<!/s)(?![\w/])"
DEVICE = (
    r"(?<![\w/.-])(?:nvidia[ -]|amd[ -]|intel[ -]|tesla[ -]|geforce[ -]|google[ -]|instinct[ -])*(?:"
    r"(?:rtx|gtx|quadro)[ -]?(?:rtx[ -]?)?(?:pro[ -]?)?[at]?\d{3,4}(?:[ -]?ti|[ -]?super|[ -]?ada)?|"
    r"gh200|gb200|gb300|mi\d{3}[axX]?|tpu[ -]?v\d[ep]?|v5litepod|gaudi[ -]?[23]|"
    r"jetson(?:[ -](?:agx|nano|tx2|orin|xavier|thor|nx))*|max 1550|"
    r"titan[ -]?(?:rtx|xp|v|x)|[avhblkp]\d{1,3}[gs]?|t4|(?:3060|3070|3080|3090|4060|4070|4080|4090|5080|5090)(?:[ -]?ti)?"
    r")(?:[ -]?(?:pcie|sxm\d?|nvl|mega))*(?:[ -]\(?\d{2,3}[ -]?g(?:i?b|ig|igs)?\b\)?|[ -]\(?\d{2,3}\)?(?=$|[\s,.?!)]))?(?![\w/]|-[A-Za-z])"
)
DEVICE_WORD = r"(?:\s?(?:gpus?|cards?|accelerators?|instances?))?"
OUTSIDE = (
    "aws", "azure", "gcp", "google cloud", "jetstream2", "jetstream", "lambda labs", "runpod", "colab", "kaggle",
    "summit", "crusher", "longhorn", "kestrel", "derecho", "cheyenne", "snellius", "mahti", "puhti",
    "alps", "marenostrum", "mare nostrum", "juwels", "jupiter", "jureca", "leonardo", "narval", "cedar", "beluga", "graham", "niagara", "trillium", "nautilus", "palmetto", "savio", "hyak", "great lakes",
    "longleaf", "sapelo2", "tinaroo", "gadi", "setonix", "fugaku", "abci", "tsubame", "el capitan", "lassen", "sierra",
    "ookami", "rockfish", "kyric", "stampede2", "lonestar", "cori", "edison",
    "thetagpu", "oakley", "karolina", "meluxina", "discoverer",
    "deucalion", "lumi-g", "hercules", "archer2", "isambard", "isambard-ai", "baskerville",
    "tursa", "dardel", "alvis", "berzelius", "idun", "betzy", "levante",
)  # fmt: skip
"""Names of systems that are not in the catalog, of which the answer is that they are unknown."""
LOCAL = (
    r"\b(?:on |in )?(?:this|my|our|the local) (?:own )?(?:machine|computer|laptop|workstation|desktop|pc|box|server|macbook|host)\b"
    r"|\blocal(?:ly)?\b|\bon localhost\b|\b(?:right )?here(?= on (?:this|my))|(?<=run )here\b|\bright here\b"
)
JOB_ID = r"(?<![\w./:$-])\d{4,9}(?:_\d+)?(?![\w%./:-]|\.\d)"
ORDINARY = (
    r"(?!(?:re-?|pre-?)?(?:fine|up|e|follow|half|full|single|mixed|low|high|real|run|wall|long|short|one|two|three|four|eight|multi|gpu|cpu|node|so|well|co|ex|non|self|sub|super|state|bio|deep|text|image|object|open|built|day|week|year|hour|batch|data|tensor|pipeline|gradient|activation|zero|int|fp|bf|amp|adam|paged|semi|weakly|pre|post|mini|micro|low|learning|sanity|deadline|on|in|off|out|over|down|back|left|right|x|a|i)-)"
)
"""A hyphenated word of English is no name."""
NAME = r"(?<![\w./:@-])" + ORDINARY + r"(?=[\w.-]*[-_])[A-Za-z][A-Za-z0-9]*(?:[-_.][A-Za-z0-9]+)+(?![\w/@])"
QUOTED = r"[\"'`]([\w][\w.@-]{0,60})[\"'`]"
NO_NAMES = frozenset(
    ["a", "an", "the", "my", "is", "are", "was", "were", "it", "that", "this", "all", "any", "one", "to", "of", "for", "in", "on", "at", "and", "or", "with", "has", "have", "had", "be", "been", "being", "do", "does", "did", "done", "will", "would", "can", "could", "should", "may", "might", "must", "which", "what", "when", "where", "why", "how", "who", "please", "pls", "now", "yet", "still", "already", "again", "today", "here", "there", "than", "then", "out", "up", "off", "over", "so", "if", "i", "you", "he", "she", "we", "they", "me", "us", "them", "id", "ids", "number", "no", "not", "nr", "queue", "script", "file", "name", "named", "called", "running", "pending", "waiting", "finished", "failed", "done", "dead", "stuck", "killed", "cancelled", "canceled", "needs", "need", "takes", "take", "took", "runs", "run", "ran", "from", "as", "by", "your", "his", "her", "our", "their", "about", "because", "using", "since", "until", "before", "after", "status", "progress", "output", "log", "logs", "history", "submission", "array", "manager", "scheduler", "time", "limit", "memory", "title", "market", "fair", "interview", "description", "search", "offer"]
)
INTERPRETERS = (
    r"(?:python3?(?:\.\d+)?|bash|sh|torchrun|accelerate launch|srun|mpirun|mpiexec|deepspeed|Rscript|julia|jupyter|"
    r"snakemake|nextflow|make|conda run|singularity|apptainer|perl|java|uv run|\./[\w./-]+|[\w/.-]+\.sh)"
)


def read_workload(reading: Reading) -> None:
    """Read the name of a workload: a file, a model of the hub, or a command with a script."""
    for pattern in (FILE, HUB):
        for match in reading.take(pattern):
            reading.put("workload", match[0].rstrip("."), match.start())
            return


def read_places(reading: Reading, systems: Collection[str]) -> list[tuple[str, str]]:
    """Return the places in the order of the text, each with its kind: device, system or local."""
    found: list[tuple[int, str, str]] = []
    names = sorted({*systems, *OUTSIDE}, key=len, reverse=True)
    pattern = rf"(?<![\w/.-])(?:the )?({'|'.join(map(re.escape, names))})('s)?(?::([\w-]+))?(?:'s)?(?![\w/])(?!-\w)"
    for match in reading.take(pattern, all_of_them=True):
        partition = match[3] or ""
        found.append((match.start(), f"{match[1]}:{partition}" if partition else match[1], "system"))
    for match in reading.take(r"(?<![\w/.-])slurm:[\w-]+", all_of_them=True):
        found.append((match.start(), match[0], "system"))
    for match in reading.take(DEVICE + DEVICE_WORD, all_of_them=True):
        found.append((match.start(), _device(match[0]), "device"))
    for match in reading.take(LOCAL, all_of_them=True):
        found.append((match.start(), "local", "local"))
    for match in reading.take(r"\b(?:on|at) (?:the )?((?-i:[A-Z])[\w-]+\d*)(?: (?:cluster|system|machine|supercomputer))?(?=$|[\s,.?!;])"):
        if match[1].lower() not in NO_NAMES and match[1][:1].isupper():
            found.append((match.start(), match[1], "system"))
        else:
            reading.text = reading.text[: match.start()] + match[0] + reading.text[match.end() :]
    places: list[tuple[str, str]] = []
    for _, name, kind in sorted(found):
        if (name.lower(), kind) not in {(one.lower(), of) for one, of in places}:
            places.append((name, kind))
    return places


def _device(text: str) -> str:
    name = re.sub(r"\s?(?:gpus?|cards?|accelerators?|instances?)$", "", text, flags=re.IGNORECASE)
    name = re.sub(r"^(?:nvidia|amd|tesla|geforce|google|instinct)[ -]", "", name, flags=re.IGNORECASE)
    return name.replace("(", "").replace(")", "").strip()


def read_jobs(reading: Reading, *, said: bool) -> list[str]:
    """Return the names and ids of jobs in the order of the text.

    Args:
        reading: The text.
        said: Whether the sentence is about a job, so that a bare number may be its id.
    """
    found: list[tuple[int, str]] = []
    for match in reading.take(r"\bjobs? (?:(?:number|id|named|called|with id|with the id|no\.?|nr\.?|#) ?)*[\"'`#]?([\w][\w.-]*[\w]|\d+)[\"'`]?(?=$|[\s,.?!;:)'])",
                              all_of_them=True):  # fmt: skip
        plain = match[1].isalpha() and not match[0].lower().startswith("jobs")
        if (match[1].isalpha() and not plain) or match[1].lower() in NO_NAMES or match[1].endswith(("ing", "ed", "'s")):
            reading.text = reading.text[: match.start()] + match[0] + reading.text[match.end() :]
        else:
            found.append((match.start(), match[1]))
    patterns = (QUOTED, NAME, *([JOB_ID, r"#(\d{1,9})\b"] if said else []))
    for pattern in patterns:
        for match in reading.take(pattern, all_of_them=True):
            found.append((match.start(), match[1] if match.re.groups else match[0]))
    return list(dict.fromkeys(name for _, name in sorted(found)))


def read_command(reading: Reading) -> Sequence[str]:
    """Return the command of a submission as words; empty without one."""
    quoted = rf"[`\"']({INTERPRETERS}\b[^`\"]*?)[`\"'](?=$|[\s,.;!?])"
    end = (
        r"(?=\s*(?:$|[,;!?]|\.(?:\s|$)|\s(?:on|at|to|with|using|for|in|under|and|please|pls|as|via|it|from|charge|account|"
        r"time|w/|over|asking|requesting|name[sd]?|call(?:ed)?|now|again|-{1,2} )(?:\s|$)|\(|\s-\s|:\s))"
    )
    bare = rf"(?<![\w/.-])({INTERPRETERS}(?:\s(?:--?[\w.-]+(?:[= ](?!--)[\w./:=-]*[\w/])?|(?!(?:on|at|to|with|using|for|in|under|and|please|pls|as|via)\b)[\w./=:+-]*[\w/=+]))*){end}"
    for pattern in (quoted, bare):
        for match in reading.take(pattern):
            try:
                return split_command(match[1].rstrip(",."), label="command")
            except InvalidInput:
                return ()
    return ()
