"""Rows about the catalog: networks in numbers, names of devices, missing figures, and faults of files."""

import random
from dataclasses import replace
from importlib.resources import files

from benchmarks.results import BenchmarkRow, at_least, at_most
from leadline.catalog.networks import parse_network
from leadline.catalog.read import TomlCatalog
from leadline.catalog.toml_files import read_devices, read_site
from leadline.core.document_errors import InvalidFile
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.hardware import DeviceKind
from leadline.core.units import GBIT_BYTES
from leadline.estimators.step_time.roofline import compute_units, describe_missing, widen_spread

NETWORK_TEXTS = {
    "Slingshot 11 (4 NIC)": 800, "4x IB NDR200 DragonFly+": 800, "2x IB NDR 400": 800, "IB HDR 2x dual HDR100": 400,
    "8x ConnectX-7 400 Gb/s": 3200, "EFA 3200 Gb/s (32 NICs)": 3200, "dual-rail EDR": 200, "IB 4X EDR": 100,
    "IB NDR 400 Gb/s (login: 100)": 400, "50 GB/s": 400, "100GbE": 100, "4 NICs, 200 Gb/s each": 800,
}  # fmt: skip
"""Texts of site files with the Gb/s of a node that they mean."""
OPEN_TEXTS = ("HPE Slingshot", "EFA", "IB EDR/HDR", "400 Gb/s (4 NICs)", "up to 100 Gb/s", "fast")
NODES = {
    ("AWS", "p5.48xlarge"): 3200, ("Perlmutter", "GPU 40GB"): 800, ("JUPITER", "quad GH200"): 800,
    ("LUMI", "LUMI-G"): 800, ("Frontier", "quad MI250X"): 800, ("Azure", "Standard_ND96isr_H100_v5"): 3200,
}  # fmt: skip
NAMES = {
    "h100-sxm": "H100 SXM5 80GB", "nvidia-h100-80gb-hbm3": "H100 SXM5 80GB",
    "RTX PRO 6000": "RTX PRO 6000 Blackwell Server", "v5litepod-8": "Cloud TPU v5e",
    "NVIDIA H800": "H800 SXM5 80GB",
    "rtx4090": "RTX 4090", "MI250": "MI250 GCD", "AMD Instinct MI250X": "MI250X GCD", "A100-40": "A100 SXM4 40GB",
    "a100_80gb_pcie": "A100 PCIe 80GB", "gpu:a100:4": "A100 SXM4 80GB", "nvidia-tesla-t4": "T4",
    "nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB": "A100 SXM4 40GB",
}  # fmt: skip
REFUSED_NAMES = (
    "NVIDIA GeForce RTX 4090 Laptop GPU", "Quadro RTX 5000 with Max-Q Design", "a100_3g.20gb", "gpu:1g.5gb:1",
    "A100 SXM", "RTX 3090 Ti", "A800",
)  # fmt: skip
"""Names that mean no single device of the catalog."""
SPLINTERS = (
    "[",
    "]",
    '"',
    "=",
    "\n",
    "inf",
    "nan",
    "9" * 400,
    "1e999",
    "{",
    "}",
    "\x00",
    "name = 1\n",
    "[[systems]]\n",
)


def rows(*, quick: bool = False) -> list[BenchmarkRow]:
    """Return all rows of the catalog."""
    return [
        network_texts(),
        network_nodes(),
        device_names(),
        missing_figures(),
        listed_faults(),
        mutated_files(quick=quick),
    ]


def network_texts() -> BenchmarkRow:
    """Count network texts that are read as another bandwidth, and open ones that are read as any."""
    wrong = sum(parse_network(text).node_bytes_per_s != gbits * GBIT_BYTES for text, gbits in NETWORK_TEXTS.items())
    wrong += sum(parse_network(text).node_bytes_per_s is not None for text in OPEN_TEXTS)
    return at_most(
        "network texts misread",
        wrong,
        0,
        "texts",
        n=len(NETWORK_TEXTS) + len(OPEN_TEXTS),
        how="texts of site files, among them 'Slingshot 11 (4 NIC)' and '4x IB NDR200'",
    )


def network_nodes() -> BenchmarkRow:
    """Count node types of the catalog whose network is not the published one."""
    catalog = TomlCatalog()
    wrong = 0
    for (system, name), gbits in NODES.items():
        node = next(row.node for row in catalog.system(system).partitions if row.node.name == name)
        wrong += node.network_bytes_per_s != gbits * GBIT_BYTES
    return at_most(
        "networks of nodes wrong",
        wrong,
        0,
        "node types",
        n=len(NODES),
        how="bandwidth of a node, against the sites' pages; AWS p5 counted as 100 Gb/s, and has 3,200",
    )


def device_names() -> BenchmarkRow:
    """Count names that mean another device than people mean, and those that should be refused."""
    catalog, wrong = TomlCatalog(), 0
    for written, name in NAMES.items():
        try:
            wrong += catalog.device(written).name != name
        except UnknownName:
            wrong += 1
    for written in REFUSED_NAMES:
        try:
            catalog.device(written)
            wrong += 1
        except UnknownName:
            continue
    return at_most(
        "device names misread",
        wrong,
        0,
        "names",
        n=len(NAMES) + len(REFUSED_NAMES),
        how="names of nvidia-smi, Slurm, Kubernetes and clouds; laptop cards and MIG slices are refused",
    )


def missing_figures() -> BenchmarkRow:
    """Return the largest error of compute units that a rule infers, over GPUs whose units are published.

    An A100's rate for each unit, the rule before, is three times off on a GB200.
    """
    gpus = [
        device
        for device in TomlCatalog().devices()
        if device.kind is DeviceKind.GPU and device.compute_units and device.peak_flops_per_s.get("float32")
    ]
    poorer = [replace(device, compute_units=None) for device in gpus]
    unsaid = [device for device in poorer if not describe_missing(device) or widen_spread(0.1, device) <= 0.1]
    factors = [compute_units(device) / (gpu.compute_units or 1) for gpu, device in zip(gpus, poorer, strict=True)]
    before = [gpu.peak_flops_per_s["float32"] / 0.18e12 / (gpu.compute_units or 1) for gpu in gpus]
    worst = float("inf") if unsaid else max(max(each, 1 / each) for each in factors)
    return at_most(
        "compute units inferred, worst ratio",
        worst,
        2.0,
        "×",
        n=len(gpus),
        baseline=max(max(each, 1 / each) for each in before),
        how="each GPU without its units; an assumption that is not said, or not in the width, counts as inf",
    )


def _plant_faults() -> tuple[str, int]:
    """Return a site file with faults, and how many they are."""
    text = (files("leadline.catalog") / "data" / "sites" / "csc.toml").read_text(encoding="utf-8")
    changes = {
        "cores = 64": "cors = 64",
        "memory_gib = 512": 'memory_gib = "512"',
        'kind = "hpc"\n': "",
        "gpus = 8": "gpus = 8.5",
        'rule = "gpu-hours"': 'rule = "gpu-hour"',
        "count = 2048": "count = nan",
    }
    for old, new in changes.items():
        text = text.replace(old, new, 1)
    return text, len(changes)


def listed_faults() -> BenchmarkRow:
    """Return the share of the planted faults of a site file that the reader lists at once."""
    (text, planted), listed = _plant_faults(), 0
    try:
        read_site(text, "planted.toml")
    except InvalidFile as refused:
        listed = len(refused.faults)
    return at_least(
        "faults of a file listed at once",
        listed / planted,
        1.0,
        "of the planted",
        n=planted,
        baseline=1 / planted,
        how="a site file with six faults; the baseline lists the first",
    )


def mutated_files(*, quick: bool = False, seed: int = 7) -> BenchmarkRow:
    """Count bare exceptions on mutated files of sites and devices."""
    data, chance = files("leadline.catalog") / "data", random.Random(seed)  # noqa: S311 - mutations that a seed repeats
    texts = {
        read_site: (data / "sites" / "csc.toml").read_text(encoding="utf-8"),
        read_devices: "[[devices]]".join((data / "devices.toml").read_text(encoding="utf-8").split("[[devices]]")[:4]),
    }
    bare, count = 0, 200 if quick else 1000
    for number in range(count):
        read = (read_site, read_devices)[number % 2]
        text = texts[read]
        for _ in range(chance.randint(1, 4)):
            at, length = chance.randrange(len(text)), chance.choice((0, 1, 3, 20, 200))
            text = text[:at] + chance.choice(SPLINTERS) + text[at + length :]
        try:
            read(text, "mutated.toml")
        except InvalidInput:
            continue
        except Exception:  # noqa: BLE001 - bare exceptions are what is counted
            bare += 1
    return at_most("bare exceptions on mutated catalog files", bare, 0, "files", n=count, how="random splices of TOML")
