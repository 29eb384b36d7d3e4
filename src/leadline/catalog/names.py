"""Names of devices as people, drivers, schedulers and clouds write them."""

import re
from collections.abc import Iterable, Sequence

from leadline.core.errors import AmbiguousName, UnknownName
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GIB

VENDOR_WORDS = frozenset({"nvidia", "amd", "instinct", "tesla", "geforce"})
"""Words before the device name in driver names, as in ``NVIDIA A100-SXM4-40GB`` or ``Tesla T4``."""
SLICE = re.compile(r"(?:^|[^0-9a-z])\d+g\.\d+gb", re.IGNORECASE)
"""Name of a MIG slice of a GPU: ``1g.10gb``, ``a100_3g.20gb``."""

_GENERIC_WORDS = VENDOR_WORDS | frozenset({
    "gpu", "gpus", "graphics", "accelerator", "rev", "c", "r", "tm", "card", "edition", "generation", "design",
    "series", "shared", "data", "center", "corporation", "oam", "mcm", "ac", "mba",
})  # fmt: skip
_MOBILE_WORDS = frozenset({"laptop", "mobile", "notebook", "maxq"})
_WORD = re.compile(r"[0-9a-z.+]+")
_MEMORY = re.compile(r"(\d+)(?:gb?|gib)")
# `gpu:a100:4`, `gres/gpu:a100`, `8x A100`, `nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB`, `v5litepod-8`.
_LABEL, _COUNT = re.compile(r"^.*=|^(?:gres[/:])?gpu[:=]"), re.compile(r"^\d+ ?[x×] ?|:\d+$")
_TPU_COUNT = re.compile(r"^((?:tpu[- ]?)?v\d+(?:e|p|litepod)?)-\d+$")


def find_device(name: str, devices: Sequence[Device]) -> Device:
    """Return the device that a name means; the first of ``devices`` wins among equal names.

    Case, punctuation, vendor and the order of words do not matter. A name that leaves a form or a memory size out
    means the one device that fits it. A card of a laptop never means the desktop card.

    Raises:
        AmbiguousName: several devices fit; the message lists them.
        UnknownName: none fits, or the name is that of a MIG slice.
    """
    folded = name.casefold().strip()
    cleaned = _TPU_COUNT.sub(r"\1", _COUNT.sub("", _LABEL.sub("", folded)))
    for device in devices:
        if {folded, cleaned} & {spelling.casefold() for spelling in (device.name, *device.aliases)}:
            return device
    words = _words(cleaned)
    if SLICE.search(cleaned):
        raise UnknownName("device", name, (), hint="it is a slice of a GPU (MIG), and the catalog has whole GPUs: name "
                          "the whole GPU, or describe the slice in a file of devices")  # fmt: skip
    for device in devices:
        if words and any(set(words) == set(_words(spelling)) for spelling in (device.name, *device.aliases)):
            return device
    matches = match_devices(cleaned, devices, DeviceKind) if any(map(str.isdigit, cleaned)) else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise AmbiguousName("device", name, [device.name for device in matches])
    if _MOBILE_WORDS & set(words):
        raise UnknownName("device", name, (), hint="it is a laptop or Max-Q card, which is slower than the desktop "
                          "card of its name: describe it in a file of devices")  # fmt: skip
    raise UnknownName("device", name, [spelling for device in devices for spelling in (device.name, *device.aliases)])


def match_devices(name: str, devices: Sequence[Device], kinds: Iterable[DeviceKind]) -> list[Device]:
    """Return the devices that a name may mean: an exact driver name, else devices that contain its words.

    Case, vendor and punctuation do not matter. ``h100`` matches every board of it, and ``a100-sxm4-80gb`` one.
    """
    words, candidates = _words(name), [device for device in devices if device.kind in kinds]
    if not words:
        return []
    joined = "".join(split_words(name))
    exact = [device for device in candidates if any(_joined_driver_name(alias) == joined for alias in device.aliases)]
    return exact or [device for device in candidates if _contains_words(device, words)]


def split_words(name: str) -> list[str]:
    """Return the words of a name in lower case."""
    return _WORD.findall(name.casefold())


def _words(name: str) -> list[str]:
    """Return the words of a name that tell devices apart; a memory size is its number (``80gb`` is ``80``)."""
    spaced = re.sub(r"max[- ]q\b", "maxq", re.sub(r"\b(rtx|gtx|tpu)(?=[a-z0-9])", r"\1 ", name.casefold()))
    words = [word for word in _WORD.findall(spaced.replace("_", " ")) if word not in _GENERIC_WORDS]
    return [memory[1] if (memory := _MEMORY.fullmatch(word)) else word for word in words]


def _contains_words(device: Device, required: Sequence[str]) -> bool:
    """True if each required word is a word of the device, or a run of its name without spaces (``rtx3090``)."""
    words = _words(device.name)
    runs = {"".join(words[at:end]) for at in range(len(words)) for end in range(at + 1, len(words) + 1)}
    specs = _words(" ".join(filter(None, (device.form_factor, device.memory_type, device.architecture))))
    memory = {f"{device.memory_bytes / GIB:.0f}"} if device.memory_bytes else set()
    kinds = {word.rstrip("0123456789") for word in words if word.startswith("sxm")}
    return all(word in runs | memory | kinds | set(specs) for word in required)


def _joined_driver_name(alias: str) -> str | None:
    """Return the words of a driver's name without spaces; ``None`` for another alias, which names no vendor."""
    words = split_words(alias)
    return "".join(words) if VENDOR_WORDS.intersection(words) else None
