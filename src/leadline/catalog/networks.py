"""Networks between nodes, and a parser of the texts that people write about them."""

import re
from math import prod

from leadline.core.frozen import Frozen
from leadline.core.units import GBIT_BYTES

MANY_GPUS = 4
"""GPUs of a node from which its network usually has several ports."""


class Network(Frozen):
    """The network of a node; ``None`` is unknown."""

    technology: str | None = None  # such as `InfiniBand NDR`, `Slingshot 11`, `EFA`, `RoCE`
    node_bytes_per_s: float | None = None  # all ports of a node together, in one direction
    nics: int | None = None


_ANY_CASE = re.IGNORECASE
# Technology, pattern, and Gb/s of a port if the name alone gives it.
_TECHNOLOGIES = tuple(
    (technology, re.compile(rf"\b{pattern}(?!\w)", _ANY_CASE), port_gbits)
    for technology, pattern, port_gbits in (
        ("InfiniBand XDR", r"XDR(?:-?800| 800(?! ?-?[GT]))?", 800),
        ("InfiniBand NDR200", r"NDR(?:-?200| 200(?! ?-?[GT]))", 200),
        ("InfiniBand NDR", r"NDR(?:-?400| 400(?! ?-?[GT]))?", 400),
        ("InfiniBand HDR100", r"HDR(?:-?100| 100(?! ?-?[GT]))", 100),
        ("InfiniBand HDR", r"HDR(?:-?200| 200(?! ?-?[GT]))?", 200),
        ("InfiniBand EDR", r"EDR(?:-?100| 100(?! ?-?[GT]))?", 100),
        ("InfiniBand FDR", r"FDR(?:-?56| 56(?! ?-?[GT]))?", 56),
        ("InfiniBand QDR", r"QDR(?:-?40| 40(?! ?-?[GT]))?", 40),
        ("Slingshot 11", r"(?:Slingshot|SS)[ -]?11", 200),
        ("Slingshot 10", r"(?:Slingshot|SS)[ -]?10", 100),
        ("Slingshot", r"Slingshot", None),
        ("Omni-Path", r"(?:OPA|Omni-?Path)(?:-?100| 100(?! ?-?[GT]))?", 100),
        ("EFA", r"EFA(?: ?v\d)?", None),
        ("RoCE", r"RoCE(?: ?v\d)?", None),
        ("InfiniBand", r"(?:InfiniBand|IB)", None),
        ("Ethernet", r"Ethernet", None),
    )
)
_PORT_GBITS = (10, 20, 25, 40, 50, 56, 100, 200, 400, 800)
_RATE = re.compile(
    r"(?<![\d.,])(?P<value>\d{1,6}(?:\.\d{1,6})?)[ -]?(?P<scale>[GgTt])"
    r"(?:(?P<bytes>i?B(?:/s|ps)|[Bb]ytes?/s)|(?P<ethernet>[Bb]?[Ee]|ig[Ee])"
    r"|(?:[Bb]its?|b|igabits?)(?:/s(?:ec)?|ps)?)?(?![A-Za-z])"
)
_BARE_RATE = re.compile(rf"(?<![\w./])(?:{'|'.join(map(str, _PORT_GBITS))})(?![\w./])")
_TIMES = re.compile(r"(?<![\w.])([1-9]\d{0,2}) ?x|(?<![\w-])x ?([1-9]\d{0,2})\b", _ANY_CASE)
_TIMES_WORD = re.compile(r"\b(dual|double|quad)\b", _ANY_CASE)
_NICS = re.compile(r"\b([1-9]\d{0,2})[ -]?(?:NIC|HCA|port|rail|adapter)s?\b", _ANY_CASE)
_EACH = re.compile(
    r"\beach\b|\bper (?:NIC|HCA|port|rail|adapter)\b|(?:NIC|HCA|port|rail|adapter)s? (?:of|at)\b", _ANY_CASE
)
_PER_GPU = re.compile(r"(?:\bper |/ ?|\ba )GPU\b", _ANY_CASE)
# `4X EDR` with a capital X is a port of four lanes.
_LANES = re.compile(r"\b4X(?= (?:IB |InfiniBand )?[QFEHNX]DR)|(?<=DR )4X\b")
_INSIDE = re.compile(r"NVLink|NVSwitch|NVL\d|xGMI|Infinity Fabric|PCIe", _ANY_CASE)
_OPEN = re.compile(r"\d ?[/–-] ?\d|\bup to\b|\bbi-?directional\b|\bor\b", _ANY_CASE)


def parse_network(text: str | None, gpus: int = 0) -> Network:
    """Read the network of a node of ``gpus`` GPUs from a text such as ``4x IB NDR200``.

    Of several networks the fastest counts. What the text leaves open is ``None``. So is the bandwidth of a node of
    many GPUs if the text is the name of a technology alone: the node may have a port for each GPU.
    """
    # A remark such as `(login: 100 Gb/s)` is about other nodes.
    plain = re.sub(r"\([^()]*:[^()]*\)", " ", text or "").replace("×", "x")
    parts = re.split(r"\s\+\s|;|&|\band\b", plain)
    pieces = [piece for part in parts for piece in (part.split(",") if _INSIDE.search(part) else [part])]
    networks = [_parse_part(_LANES.sub("", piece), gpus) for piece in pieces if not _INSIDE.search(piece)]
    return max(
        networks, key=lambda network: (network.node_bytes_per_s or 0, network.technology or ""), default=Network()
    )


def _parse_part(text: str, gpus: int) -> Network:
    """Read a text about one network."""
    ports: dict[str, float | None] = {}
    for technology, pattern, port_gbits in _TECHNOLOGIES:
        text, count = pattern.subn(" ", text)
        if count and not any(name.startswith(technology) for name in ports):
            ports[technology] = port_gbits
    rates = list(_RATE.finditer(text))
    stated = {_gbits(rate) for rate in rates}
    if any(rate["ethernet"] for rate in rates):
        ports.setdefault("Ethernet", None)
    if ports and not stated:
        stated = {float(rate.group()) for rate in _BARE_RATE.finditer(text)}
    port_rates = {port for port in ports.values() if port is not None}
    if len(port_rates) > 1 or _OPEN.search(text):
        return Network(next(iter(ports)) if len(ports) == 1 else None)
    factors = [int(match[1] or match[2]) for match in _TIMES.finditer(text)]
    factors += [4 if match[1].casefold() == "quad" else 2 for match in _TIMES_WORD.finditer(text)]
    times = prod(factors) if factors else None
    nics = next((int(match[1]) for match in _NICS.finditer(text)), None)
    if nics is None and times is None and gpus and _PER_GPU.search(text):
        times = gpus
    gbits = _node_gbits(text, stated, next(iter(port_rates), None), times, nics, gpus)
    return Network(next(iter(ports), None), gbits * GBIT_BYTES if gbits else None, nics or times)


def _node_gbits(
    text: str, stated: set[float], port: float | None, times: int | None, nics: int | None, gpus: int
) -> float | None:
    """Return the Gb/s of a node from the rates in its text and the rate of a port of its technology."""
    if len(stated) == 2 and times and max(stated) == times * min(stated):
        return max(stated)  # `3200 Gb/s (8x 400 Gb/s)`
    if len(stated) > 1 or (_PER_GPU.search(text) and not (times or nics)):
        return None
    if not stated:
        count = nics or times or (None if gpus >= MANY_GPUS else 1)
        return port and count and port * count
    (rate,) = stated
    if times:
        return rate * times
    if nics and (rate == port or _EACH.search(text)):
        return rate * nics
    # `400 Gb/s (4 NICs)` may mean either; no port has the rate of `3200 Gb/s (8 NICs)`.
    return None if nics and nics > 1 and rate in _PORT_GBITS else rate


def _gbits(rate: re.Match[str]) -> float:
    """Return a stated rate in Gb/s."""
    return float(rate["value"]) * (1000 if rate["scale"] in "Tt" else 1) * (8 if rate["bytes"] else 1)
