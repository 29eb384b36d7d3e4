"""Read the options of a workload, a job and a recommendation from the text of a question."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from leadline.core.units import DAY_S, GIB, HOUR_S, KIB, MIB, MINUTE_S
from leadline.interfaces.chat.language import NUMBER, number

Value = Any
"""A value of an argument."""


@dataclass(slots=True)
class Reading:
    """A text of which patterns take their parts, so that none is read twice.

    Attributes:
        text: what is left; a part that was taken is a row of ``_``.
        slots: argument → value, in the order of the text.
        places: argument → where it was read.
    """

    text: str
    slots: dict[str, Value] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def take(self, pattern: str, *, all_of_them: bool = False) -> Iterator[re.Match[str]]:
        """Yield the match of a pattern, or all matches, and take them out of the text."""
        for match in list(compiled(pattern).finditer(self.text)):
            self.hide(match.start(), match.end())
            yield match
            if not all_of_them:
                return

    def hide(self, start: int, end: int) -> None:
        """Take a part out of the text."""
        self.text = f"{self.text[:start]}{'_' * (end - start)}{self.text[end:]}"

    def says(self, pattern: str) -> bool:
        """Tell whether what is left matches a pattern."""
        return compiled(pattern).search(self.text) is not None

    def put(self, name: str, value: Value, at: int) -> None:
        """Keep the first value of an argument."""
        if name not in self.slots:
            self.slots[name] = value
            self.places[name] = at


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern that ignores case."""
    return re.compile(pattern, re.IGNORECASE)


N = NUMBER
IS = r"(?:\s*(?:=|:|\bof\b|\bis\b|\bto\b|\bat\b|\bset to\b|\babout\b|\ba\b)\s*|\s+|-)"
SPAN = (
    r"(?:(?<![\w.,$/-])(\d+(?:\.\d+)?)()\s*-?(seconds?|secs?|s|minutes?|mins?|min|hours?|hrs?|hr|h|days?|d|weeks?|wks?|w|months?)\b"
    r"(?:(?:\s+and|,)?\s+(?:(a half)|(\d+)\s*(minutes?|mins?|m|hours?|hrs?|h)\b)|(\d{1,2})(?:m(?:in)?)?\b)?)"
)
"""Groups: number, its scale, unit, a half, a second number and its unit, minutes after ``1h``."""
UNIT_S = {"s": 1, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
WORDS_S = (
    (r"\b(?:an?|1) (?:hour|hr) and a half\b", 1.5 * HOUR_S), (r"\b(?:an?|1) day and a half\b", 1.5 * DAY_S),
    (r"\bhalf an hour\b", HOUR_S / 2), (r"\bhalf a day\b", DAY_S / 2), (r"\bhalf a week\b", 3.5 * DAY_S),
    (r"\b(?:a )?quarter of an hour\b", HOUR_S / 4), (r"\b(?:a )?fortnight\b", 14 * DAY_S),
    (r"\b(?:an?|1|the|one) (?:full |whole |single )?hour\b", HOUR_S),
    (r"\b(?:a|1|one) (?:full |whole |single )?day\b", DAY_S), (r"\b(?:a|1|one) (?:full |whole |single )?week\b", 7 * DAY_S),
    (r"\b(?:a|1|one) (?:full |whole |single )?month\b", 30 * DAY_S), (r"\b(?:a|1|one) minute\b", MINUTE_S),
)  # fmt: skip


def read_spans(reading: Reading) -> Iterator[tuple[int, float]]:
    """Yield place and seconds of every duration in the text, and take them."""
    clock = r"(?<![\w:.-])(?:(\d{1,2})-)?(\d{1,3}):(\d\d)(?::(\d\d))(?![\w:])"
    for match in reading.take(clock, all_of_them=True):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        yield match.start(), days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds
    for match in reading.take(r"(?<![\w.])(\d+) and a half (days?|hours?|weeks?)\b|(?<![\w.])(\d+) (?:1/2) (days?|hours?)\b",
                              all_of_them=True):  # fmt: skip
        count, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
        yield match.start(), (int(count) + 0.5) * UNIT_S[unit[0].lower()]
    for match in reading.take(SPAN, all_of_them=True):
        digits, scale, unit, half, more, more_unit, minutes = match.groups()
        unit_s = 30 * DAY_S if unit.lower().startswith("mo") else UNIT_S[unit[0].lower()]
        seconds = (number(digits, scale) + (0.5 if half else 0)) * unit_s
        if more:
            seconds += int(more) * UNIT_S[more_unit[0].lower()]
        elif minutes and unit[0].lower() == "h":
            seconds += int(minutes) * MINUTE_S
        yield match.start(), seconds
    for pattern, seconds in WORDS_S:
        for match in reading.take(pattern, all_of_them=True):
            yield match.start(), seconds


def _counts(*patterns: str) -> tuple[tuple[str, Callable[[re.Match[str]], Value]], ...]:
    """Return readers of whole numbers; a pattern's first two groups are those of ``NUMBER``."""
    return tuple((pattern, lambda match: _tidy(number(match[1], match[2]))) for pattern in patterns)


def _tokens(*patterns: str) -> tuple[tuple[str, Callable[[re.Match[str]], Value]], ...]:
    """Return readers of numbers of tokens, of which ``4k`` are 4,096."""
    return tuple((pattern, lambda match: _tokens_of(match[1], match[2])) for pattern in patterns)


def _tokens_of(digits: str, scale: str | None) -> int:
    count = float(digits.replace(",", ""))
    binary = (scale or "").lower() == "k" and count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    return int(count * 1024) if binary else int(number(digits, scale))


def _is(value: Value, *patterns: str) -> tuple[tuple[str, Callable[[re.Match[str]], Value]], ...]:
    return tuple((pattern, lambda _: value) for pattern in patterns)


def _tidy(value: float) -> int | float:
    return int(value) if value == int(value) else value


BATCH = r"(?:(?:mini|micro)?-?\s?batch(?:es)?(?:[ -]?sizes?)?|\bbs|\bbsz|per_device_train_batch_size)"
SAMPLES = (
    r"(?:samples?|images?|imgs?|pictures?|photos?|examples?|sequences?|sentences?|documents?|docs?|clips?|recordings?|"
    r"spectra|molecules?|structures?|reads?|rows?|records?|frames?|graphs?|patches|tiles?|slices?|scans?|items?|"
    r"pairs?|videos?|files|papers|articles|abstracts|reviews|tweets|compounds|proteins|genomes|cells|points|"
    r"observations|trajectories|snapshots|simulations|maps|slides|x-?rays|patients|galaxies|stars|light curves|"
    r"utterances|annotations|crops|chips|spectrograms|songs|calls|data ?points|questions|conversations|prompts)"
)
TRAINING = r"(?:training |train |labell?ed |annotated |input |raw |audio |camera[- ]trap |satellite |new |small |short )*"
WORKLOAD: tuple[tuple[str, tuple[tuple[str, Callable[[re.Match[str]], Value]], ...]], ...] = (
    ("accumulate", _counts(
        rf"(?:\bgrad(?:ient)?s?[ -]?)?\bacc(?:um)?(?:ulat(?:e|es|ed|ion|ing))?(?: gradients)?(?: steps?)?(?: over| for|,)?{IS}{N}(?: (?:micro-?)?(?:steps|batches))?",
        rf"{N}[- ](?:gradient[- ])?accumulation(?: steps?)?", rf"{N} (?:steps? of )(?:gradient )?accumulation",
        rf"{N} micro-?(?:steps|batches)",
    )),
    ("network", tuple((pattern, lambda match: f"{match[1]}{'GB' if match[2].startswith('GB') else 'Gb'}/s{'/gpu' if match[3] else ''}")
                      for pattern in (r"\b(\d+(?:\.\d+)?)\s?((?:[Gg]b(?:it)?|GB|[Gg]ig(?:abit)?s?)(?:it)?(?:/s|ps|/sec| per second))(\s?(?:/|per )gpu)?",))),
    ("quantize", (*_is("8bit", r"\b(?:8|eight)[- ]?bits?\b(?! ?(?:adam|optim|paged))|\bint-?8\b"),
                  *_is("4bit", r"\b(?:4|four)[- ]?bits?\b(?! ?(?:adam|optim))|\bint-?4\b|\bnf4\b"))),
    ("optimizer", (
        *_is("paged-adamw8bit", r"\bpaged[- _]adamw?[- _]?8[- ]?bit\b|\bpaged (?:8[- ]?bit|_+) adamw?\b|\b8-?bit paged[- ]adamw?\b"),
        *_is("paged-adamw", r"\bpaged[- _]adamw?\b"),
        *_is("adamw8bit", r"\b8[- ]?bit adamw?\b|\badamw?[- _]?8[- ]?bit\b|\badamw? in 8[- ]?bit\b|\bbnb adamw?\b"),
        *_is("adamw", r"\badam-?w\b"), *_is("adam", r"\badam\b"), *_is("adagrad", r"\bada-?grad\b"),
        *_is("rmsprop", r"\brms-?prop\b"), *_is("lion", r"\blion\b"),
        *_is("momentum", r"\bsgd (?:with|\+|and|w/) ?momentum\b|\bmomentum(?: sgd)?\b"),
        *_is("sgd", r"\bsgd\b|\bstochastic gradient descent\b"),
    )),
    ("precision", (
        *_is("amp-fp16", r"\bamp[- (]*(?:with |in |and |using )?(?:fp|float)-?16\)?|\bmixed[- ]precision,?[- (]*(?:training )?(?:\(|with |in |at |using )?(?:fp|float)-?16\)?|\b(?:fp|float)-?16[- ](?:amp|mixed(?:[- ]precision)?)\b|\bmixed (?:fp|float)-?16\b"),
        *_is("amp-bf16", r"\bamp[- (]*(?:with |in |and |using )?b(?:f|float)-?16\)?|\bmixed[- ]precision,?[- (]*(?:training )?(?:\(|with |in |at |using )?b(?:f|float)-?16\)?|\bb(?:f|float)-?16[- ](?:amp|mixed(?:[- ]precision)?)\b|\bmixed b(?:f|float)-?16\b|\bautocast (?:to |with |in )?b(?:f|float)-?16\b"),
        *_is("bf16", r"\bb(?:f|float|fp)-?16\b"), *_is("fp16", r"\b(?:fp|float|f)-?16\b|\bhalf[- ]precision\b"),
        *_is("tf32", r"\btf-?32\b"), *_is("fp32", r"\b(?:fp|float|f)-?32\b|\b(?:full|single)[- ]precision\b"),
    )),
    ("lora", _counts(
        rf"\bq?loras?(?: adapters?)?(?:,| \()?(?: with| of| at| using)?(?: a)?(?:[ -](?:rank|r))?{IS}{N}\)?",
        rf"\b(?:rank|r)\s?(?:=|:|of|is)?\s?-?{N}(?= |,|\.|\?|\)|$)(?: (?:q?lora|adapters?))?", rf"{N}[- ]rank (?:q?lora|adapters?)",
    )),
    ("tensor_parallel", _counts(
        rf"\btensor[- ]?parallel(?:ism|ized)?(?: size| degree)?(?: over| across| on)?{IS}{N}(?: gpus)?", rf"\btp\s?=?\s?{N}",
        rf"{N}[- ]?(?:way|fold|x)? ?(?:tensor[- ]parallel(?:ism)?|\btp\b)",
    )),
    ("pipeline_parallel", _counts(
        rf"\bpipeline[- ]?(?:parallel(?:ism)?)?(?: size| degree| stages)?(?: over| across| with| in)?{IS}{N}(?: stages)?", rf"\bpp\s?=?\s?{N}",
        rf"{N}[- ]?(?:way|stage|fold)?s? ?(?:pipeline(?:[- ]parallel(?:ism)?)?(?: stages)?|\bpp\b)", rf"{N} stages?",
    )),
    ("sharding", (
        *_is("none", r"\b(?:no|without) (?:any )?shard(?:ing|s)?\b|\bnot sharded\b|\bunsharded\b"),
        *_is("full", r"\bzero[- ]?(?:stage[- ]?)?3\b|\bfully[- ]sharded(?: data parallel)?\b|\bfull(?:y)?[- ]shard(?:ing|ed|s)?\b|\bfsdp2?\b|\bshard(?:ed|s|ing)? (?:everything|fully|it all|all of it|in full|the (?:whole model|weights|parameters)(?: too)?)\b|\bshard(?:ed|s|ing)?[ :=]*(?:is )?full\b|\bstage 3\b"),
        *_is("gradients", r"\bzero[- ]?(?:stage[- ]?)?2\b|\bgradients?(?: also| are)?(?: and optimizer states?)?[- ](?:shard(?:ing|ed)|being sharded)\b|\bshard(?:ed|s|ing)? (?:also |only |just )?(?:the )?(?:optimizer(?: states?)? and (?:the )?)?gradients\b|\bshard(?:ing)?[ :=]*gradients\b|\bstage 2\b"),
        *_is("optimizer", r"\bzero[- ]?(?:stage[- ]?)?1\b|\b(?:optimi[sz]er(?: states?)?)(?: are| is)?[- ]shard(?:ing|ed)\b|\bshard(?:ed|s|ing)? (?:only |just )?(?:the )?optimi[sz]ers?(?: states?)?\b|\bshard(?:ing)?[ :=]*optimizer\b|\bstage 1\b"),
    )),
    ("checkpointing", (
        *_is(False, r"\b(?:no|without|w/o|disable|turn(?:ing)? off) (?:the )?(?:gradient|activation|grad)[- ]?(?:checkpoint(?:ing|s)?|ckpt)\b|\b(?:gradient|activation|grad)[- ]?(?:checkpoint(?:ing|s)?|ckpt) (?:is |turned |switched )?off\b"),
        *_is(True, r"\b(?:gradient|activation|grad|act)s?[- ]?(?:check-?point(?:ing|s|ed)?|ckpt(?:ing)?)\b(?: (?:is |turned |switched )?on)?|\bcheckpointing(?: (?:is |turned |switched )?on)?\b|\brecomput(?:e|es|ed|ing|ation)(?: (?:of )?(?:the )?activations?)?\b|\bactivations? recomput(?:ed|ation|ing)\b|\bgrad ckpt\b"),
    )),
    ("paged", (
        *_is(False, r"\b(?:no|without) (?:paged|paging)(?: attention| kv[- ]cache| cache)?\b"),
        *_is(True, r"\bpaged[- ]?(?:attention|kv|cache)?(?:[- ]?(?:kv[- ])?cache)?\b|(?<![\w-])vllm(?![\w-])"),
    )),
    ("lora_embeddings", _is(True, r"\b(?:full|fully) train(?:ing|ed)? (?:of )?(?:the )?embeddings?(?: layers?)?(?: and (?:the )?(?:output|lm)[- ](?:layer|head))?|\b(?:also |and )?(?:train(?:ing|ed|s)? )?(?:the |its )?(?:(?:input |output )?embeddings?(?: and output)?(?: layers?)?)(?: (?:and|&) (?:the )?(?:output|lm)[- ](?:layer|head)s?)?(?: (?:are |being )?(?:also |too|fully |as well)(?:trained|unfrozen|in full)?| in full| trained(?: in full| too| as well)?)")),
    ("seq_max", _tokens(
        rf"\b(?:longest|biggest|largest)(?: (?:batch|sequence|sample|one|document|text|input|prompt))*(?: (?:has|is|of|with|being|at|are|can be|goes up to))*{IS}{N}(?: tokens)?",
        rf"\b(?:up to|at most|max(?:imum)?(?: of)?|maximal(?:ly)?) {N} tokens?\b(?! (?:out|gen|new))", rf"\bseq[_ -]?max{IS}{N}",
        rf"{N} (?:tokens )?(?:at the longest|for the longest|at worst|in the longest)",
    )),
    ("generate", _tokens(
        rf"\b(?:generat|produc|decod|sampl|writ|emit|output|complet|spit)\w*(?: out| of| about| me| up to)*(?: the)?(?: next)? {N}(?: new| output| more)?(?: tokens?)?\b",
        rf"{N} (?:new|output|generated|completion|decoded|answer|response|reply)[- ]?tokens?", rf"{N} tokens? (?:of (?:output|text|answer|response|completion)|out\b|generated|each answer|per (?:answer|reply|response|completion)|to generate)",
        rf"\b(?:max_?new_?tokens|new tokens|output tokens|output length|answers? of){IS}{N}(?: tokens?)?", rf"\b(?:answers?|replies|responses|completions?|outputs?)(?: of| with| are| that are| being| have| has)* {N} tokens?",
    )),
    ("seq", _tokens(
        rf"\b(?:seq(?:uence)?s?[-_ ]?(?:len(?:gth)?s?)?|ctx(?:[- ]?len)?|context(?:[- ]?(?:length|window|size|len))?|max[-_ ]?(?:seq[-_ ]?)?len(?:gth)?|token length|prompt(?: length|s)?|inputs?|tokens per sample|length|texts|window)(?: of| with| each| being| are|,)*{IS}{N}(?: tokens?)?(?: (?:each|long))?\b(?! {SAMPLES})",
        rf"{N}[- ]?(?:tokens?)?[- ](?:long )?(?:contexts?|ctx|seq(?:uence)?[- ]?(?:len(?:gth)?)?\b|prompts?|inputs?|windows?|sequences?|token sequences)",
        rf"{N}[- ]tokens?(?: (?:per sample|each|long|a sample|per sequence|per example|per document|of context|in|sequences|context|prompts?|inputs?))?",
    )),
    ("epochs", _counts(rf"{N}[- ]?(?:(?:full|training|more|whole|complete) )?(?:epochs?|eps?\b|passes|pass\b)", rf"\bepochs?{IS}{N}")),
    ("workers", _counts(
        rf"{N} (?:(?:data|io)[- ]?)?(?:load(?:er|ing) )?(?:workers?|loader processes|loaders|loading processes|processes (?:that|which|to) load)(?: processes)?", rf"\b(?:num[_ ]|n)?workers?{IS}{N}",
    )),
    ("steps", _counts(
        rf"{N} (?:optimi[sz]er |training |gradient |train |update |weight )?(?:steps?|iterations?|iters?|updates)\b", rf"\b(?:max[_ ])?(?:steps?|iterations?|iters){IS}{N}",
    )),
    ("batch", _counts(
        rf"{BATCH}(?: per (?:gpu|device|card))?(?:{IS}|\s?=\s?|\s?:\s?| size of | only | just )(?:only |just |about )?{N}(?: (?:per|on each|a) (?:gpu|device|card))?(?: {SAMPLES})?",
        rf"{N}(?: {SAMPLES})? (?:per|a|in each|in a|on each|for each|in every|on every)[ -](?:gpu|device|batch|card|step|micro-?step|go)\b",
        rf"{N}[- ]?(?:{SAMPLES}[- ])?(?:batch(?:es)?|bs\b)(?:[- ]size)?", rf"\bb(?:atch)?{N}", rf"{N} {SAMPLES} (?:at a time|at once|at the same time|each time|simultaneously|in parallel)",
        rf"{N} at a time",
    )),
)  # fmt: skip
"""Option → patterns and what a match says, in the order in which they are tried."""


def read_workload_options(reading: Reading) -> None:
    """Read the options of a workload but its GPUs, which depend on the places."""
    for name, patterns in WORKLOAD:
        for pattern, value in patterns:
            for match in reading.take(pattern):
                reading.put(name, value(match), match.start())
            if name in reading.slots:
                break
    if reading.says(r"\bqlora\b"):
        reading.put("quantize", "4bit", 0)


def read_samples(reading: Reading) -> None:
    """Read the size of the data set, after all else that is counted."""
    for pattern in (
        rf"\b(?:data ?set|corpus|training set)(?: size)?(?: (?:of|is|with|has|contains|holds|being))*{IS}(?:about |roughly |around )?{N}(?: {TRAINING}{SAMPLES})?",
        rf"{N} (?:of )?{TRAINING}{SAMPLES}\b", rf"\bsamples{IS}{N}",
        rf"{N} (?:of them|of these|of those|in the (?:data ?set|training set|corpus))",
    ):
        for match in reading.take(pattern):
            reading.put("samples", int(number(match[1], match[2])), match.start())


def read_size(reading: Reading) -> int | None:
    """Read a memory request such as ``16G`` or ``64 GB of RAM``."""
    units = {"k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}
    pattern = r"(?<![\w.])(\d+(?:\.\d+)?)\s?(k|m|g|t)(?:i?b|igs?|igabytes?|egabytes?)?\b(?:\s(?:of )?(?:\w+ )?(?:ram|memory|mem)\b)?"
    for match in reading.take(pattern):
        return int(float(match[1]) * units[match[2].lower()])
    return None
