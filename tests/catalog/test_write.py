"""What is written of a system reads again as the same system, whatever stands in its names and figures."""

from hypothesis import given
from hypothesis import strategies as st

from leadline.catalog.networks import parse_network
from leadline.catalog.read import TomlCatalog
from leadline.catalog.toml_files import read_site
from leadline.catalog.write import format_site
from leadline.core.hardware import Confidence
from leadline.core.systems import (
    Billing,
    BillingRule,
    Limits,
    NodeType,
    Partition,
    Scheduling,
    SubmitRules,
    System,
)
from leadline.core.units import GBIT_BYTES

TEXT = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
WORD = TEXT.filter(bool)
COUNT = st.none() | st.integers(1, 10**6)


def states_no_number(technology: str) -> bool:
    """Return whether a network's name leaves its NICs and bandwidth open: what it states is read even if not set."""
    networks = [parse_network(text, 1) for text in (technology, f"{technology}, 2 NICs")]
    return networks[0].nics is None and not any(network.node_bytes_per_s for network in networks)


BYTES = st.none() | st.integers(1, 2**50)
RATE = st.none() | st.floats(1e-6, 1e6)
NODES = st.builds(
    NodeType, WORD, COUNT, cpu_model=st.none() | TEXT, cores=COUNT, memory_bytes=BYTES, usable_memory_bytes=BYTES,
    device=st.none() | WORD, gpus=st.integers(0, 16), sockets=st.integers(1, 8), note=TEXT,
    network_technology=st.none() | WORD.filter(states_no_number), nics=COUNT, scale_up_gpus=COUNT, power_limit_w=RATE,
    network_bytes_per_s=st.none() | st.integers(1, 10**5).map(lambda gigabits: gigabits * GBIT_BYTES),
)  # fmt: skip
BILLING = st.builds(
    Billing, st.sampled_from(BillingRule), WORD, core_hour=RATE, gpu_hour=RATE, gib_hour=RATE, node_hour=RATE,
    memory_bytes_per_core=BYTES, charge_factor=st.floats(0.1, 10), free=st.booleans(), source=TEXT, note=TEXT,
)  # fmt: skip
LIMITS = st.builds(
    Limits, max_walltime_s=st.none() | st.integers(1, 10**6).map(lambda minutes: 60.0 * minutes), max_nodes=COUNT,
    max_cores=COUNT, max_gpus=COUNT, min_nodes=COUNT, max_submitted_jobs=COUNT,
)  # fmt: skip
RULES = st.builds(
    SubmitRules, rejects=st.lists(WORD, max_size=2).map(tuple), requires=st.lists(WORD, max_size=2).map(tuple),
    gpu_option=st.none() | WORD, whole_nodes=st.booleans(), constraint=st.none() | TEXT, qos=st.none() | TEXT,
    notes=st.lists(TEXT, max_size=2).map(tuple),
)  # fmt: skip
PARTITIONS = st.builds(
    Partition, WORD, NODES, queue=st.none() | TEXT, limits=LIMITS, billing=st.none() | BILLING, rules=RULES,
    preemptible=st.booleans(), restricted=st.booleans(), default_memory_bytes_per_core=BYTES, note=TEXT,
    confidence=st.sampled_from(Confidence), source=WORD, as_of=WORD,
)  # fmt: skip
SCHEDULING = st.builds(
    Scheduling, version=TEXT, rejects_beyond_limits=st.none() | st.booleans(), max_array_size=COUNT,
    sampling_interval_s=st.none() | st.floats(0, 1e6), accounting_answered=st.none() | st.booleans(),
)  # fmt: skip
SYSTEMS = st.builds(
    System, WORD, st.just("S"), st.just("cluster"), st.just("production"), st.just("slurm"),
    partitions=st.lists(PARTITIONS, max_size=4).map(tuple), scheduling=st.none() | SCHEDULING, source=WORD, as_of=WORD,
    note=TEXT,
)  # fmt: skip


@given(SYSTEMS)
def test_a_system_round_trips(system):
    assert read_site(format_site([system], site="S", name="S", heading=["a", "b"]), "s.toml") == [system]


def test_every_shipped_system_round_trips():
    for system in TomlCatalog(None).systems():
        assert read_site(format_site([system], site=system.site, name=system.site), system.name) == [system]


def test_partitions_that_share_a_node_type_share_its_table():
    node = NodeType("thin", 4, cores=64)
    partitions = tuple(Partition(name, node) for name in ("a", "b"))
    text = format_site([System("X", "S", "cluster", "production", "slurm", partitions)], site="S", name="S")
    assert (text.count("[systems.nodes."), text.count('node = "thin"')) == (1, 2)
