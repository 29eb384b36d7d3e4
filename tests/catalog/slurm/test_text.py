"""What Slurm's commands print is read as it was meant, whatever stands in a free text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.catalog.slurm.text import (
    Gres,
    from_sinfo,
    parse_count,
    parse_memory,
    parse_seconds,
    read_gres,
    read_nodes,
    read_partitions,
    read_rows,
    read_slurm_config,
    read_tres,
    read_weights,
)
from leadline.core.units import DAY_S, GIB, HOUR_S, MIB
from tests.catalog.slurm import slurm_outputs as outputs

TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=40)
LIKE_KEYS = st.lists(
    st.sampled_from(
        ["Gres=gpu:8", "CPUTot=9", "RealMemory=1", "State=IDLE", "Partitions=x", "Comment=y", "a b", "=", " "]
    ),
    max_size=6,
).map(" ".join)


@pytest.mark.parametrize(
    ("listing", "cpus", "memory"),
    [
        (outputs.V20_11_NODES, [("CPUTot", "48"), ("CPUTot", "48"), ("CPUTot", "28")], ["190000", "190000", "512000"]),
        (outputs.V22_05_NODES, [("CPUEfctv", "4"), ("CPUEfctv", "4")], ["4000", "4000"]),
        (outputs.V23_11_NODES, [("CPUEfctv", "124")] * 32, ["1547000"] * 32),
        (outputs.V24_05_NODES, [("CPUEfctv", "124")] * 32, ["1547000"] * 32),
        (outputs.V25_05_NODES, [("CPUEfctv", "124")], ["1547000"]),
    ],
    ids=["20.11", "22.05", "23.11", "24.05", "25.05"],
)
def test_the_nodes_of_every_version_are_read(listing, cpus, memory):
    nodes = read_nodes(listing)
    assert memory == [node["RealMemory"] for node in nodes]
    assert [node[key] for node, (key, _) in zip(nodes, cpus, strict=True)] == [value for _, value in cpus]


def test_keys_inside_a_reason_or_comment_are_ignored():
    one, two = read_nodes(outputs.V22_05_NODES)
    assert (one["RealMemory"], one["State"], one["CPUTot"]) == ("4000", "IDLE+DRAIN", "4")
    assert (two["Gres"], two["Partitions"]) == ("gpu:a100:2", "short,gpu")
    assert not {"Reason", "Comment", "Extra"} & (one.keys() | two.keys())


def test_a_value_with_spaces_ends_where_the_next_key_begins():
    (node,) = read_nodes(outputs.V25_05_NODES)
    assert node["OS"] == "Linux 7.0.0-22-generic #22-Ubuntu SMP PREEMPT_DYNAMIC Mon May 25 15:54:34 UTC 2026"


@given(system=TEXT, reason=TEXT | LIKE_KEYS, comment=TEXT | LIKE_KEYS)
def test_free_text_does_not_change_the_parsed_node(system, reason, comment):
    """The name of the operating system comes from the kernel, and names no key of Slurm's."""
    line = (
        f"NodeName=n1 Arch=x86_64 CPUTot=64 Gres=gpu:h100:4(S:0,2-3) OS=Linux {system.replace('=', '-')}  "
        f"RealMemory=515000 State=IDLE Partitions=a,b  "
        f"CfgTRES=cpu=64,gres/gpu=4 AllocTRES= Reason={reason} [root@2026] Comment={comment}"
    )
    (node,) = read_nodes(f"{line}\n")
    assert (
        node["CPUTot"], node["Gres"], node["RealMemory"], node["State"], node["Partitions"], node["AllocTRES"],
    ) == ("64", "gpu:h100:4(S:0,2-3)", "515000", "IDLE", "a,b", "")  # fmt: skip


@given(
    comment=st.text(st.characters(blacklist_categories=("Cs",)), max_size=60).filter(
        lambda said: "NodeName=" not in said
    )
)
def test_a_line_end_in_a_comment_neither_adds_nor_loses_a_node(comment):
    listing = f"NodeName=a CPUTot=1 Reason={comment}\nNodeName=b CPUTot=2\n"
    assert [(node["NodeName"], node["CPUTot"]) for node in read_nodes(listing)] == [("a", "1"), ("b", "2")]


@given(st.text(max_size=300))
def test_arbitrary_text_never_raises(said):
    readers = (
        read_nodes,
        read_partitions,
        read_slurm_config,
        read_gres,
        read_tres,
        read_weights,
        from_sinfo,
        parse_seconds,
        parse_count,
    )
    for read in (*readers, parse_memory):
        read(said)


@pytest.mark.parametrize(
    ("listing", "names", "limit"),
    [
        (outputs.V20_11_PARTITIONS, ["batch", "gpu"], 2 * DAY_S),
        (outputs.V22_05_PARTITIONS, ["short", "gpu"], HOUR_S),
        (outputs.V23_11_PARTITIONS, ["h100"], 3 * DAY_S),
        (outputs.V24_05_PARTITIONS, ["standard", "h100"], 6 * DAY_S),
        (outputs.V25_05_PARTITIONS, ["h100"], 3 * DAY_S),
    ],
    ids=["20.11", "22.05", "23.11", "24.05", "25.05"],
)
def test_the_partitions_of_every_version_are_read(listing, names, limit):
    partitions = read_partitions(listing)
    assert ([one["PartitionName"] for one in partitions], parse_seconds(partitions[0]["MaxTime"])) == (names, limit)


def test_weights_are_not_cut_at_their_equals_signs():
    (_, gpu) = read_partitions(outputs.V22_05_PARTITIONS)
    assert gpu["TRESBillingWeights"] == "CPU=1.0,Mem=0.25G,GRES/gpu=15.0"
    assert read_weights(gpu["TRESBillingWeights"]) == {"cpu": 1.0, "mem": 0.25 / 1024, "gres/gpu": 15.0}


def test_a_weight_of_memory_without_a_suffix_is_of_a_mebibyte():
    """The example of slurm.conf: 8 GB at mem=.25 are 2048 units, at mem=.25G they are 2."""
    assert tuple(8192 * read_weights(said)["mem"] for said in ("mem=.25", "mem=.25G")) == (2048, 2)


def test_settings_without_a_value_are_left_out():
    config = read_slurm_config(outputs.config("23.11.3"))
    assert (config["SLURM_VERSION"], config["ClusterName"], config["PowerPlugin"]) == ("23.11.3", "reef", "")
    assert "CommunicationParameters" not in config


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("gpu:a100:4(S:0-1)", [Gres("gpu", "a100", 4)]),
        ("gpu:4", [Gres("gpu", None, 4)]),
        ("gpu:a100:2(S:0,2-3),gpu:1g.10gb:7,shard:16",
         [Gres("gpu", "a100", 2), Gres("gpu", "1g.10gb", 7), Gres("shard", None, 16)]),
        ("gpu:tesla:no_consume:2", [Gres("gpu", "tesla", 2)]),
        ("craynetwork:4K", [Gres("craynetwork", None, 4096)]),
        ("gpu:a100", [Gres("gpu", "a100", 1)]),
        ("(null)", []), ("", []), ("N/A", []),
    ],
)  # fmt: skip
def test_generic_resources_parse_with_and_without_type_and_sockets(said, found):
    assert read_gres(said) == found


def test_tres_are_read_in_bytes_and_counts():
    assert read_tres("cpu=64,mem=100G,gres/gpu:a100=8") == {"cpu": 64, "mem": 100 * GIB, "gres/gpu:a100": 8}
    assert read_tres("mem=4000M") == {"mem": 4000 * MIB}


@pytest.mark.parametrize(
    ("said", "limit"),
    [("2-00:00:00", 2 * DAY_S), ("30:00", 1800), ("UNLIMITED", None), ("infinite", None), ("??", None)],
)
def test_time_limits_of_sinfo_scontrol_and_sacctmgr_parse(said, limit):
    assert parse_seconds(said) == limit


def test_sinfo_records_look_like_scontrol_records():
    short = "short|1:00:00|1-infinite|2|4+|4000+|gpu:a100:2|a100,big|two,three\n"
    partitions, nodes = from_sinfo(f"{short}big|infinite|2-8|9|64|500000|(null)|(null)|c[1-9]\n")
    assert [(one["PartitionName"], one["MinNodes"], one["MaxNodes"]) for one in partitions] == [
        ("short", "1", "infinite"),
        ("big", "2", "8"),
    ]
    assert [(one["Partitions"], one["CPUTot"], one["RealMemory"], one["Nodes"]) for one in nodes] == [
        ("short", "4", "4000", "2"),
        ("big", "64", "500000", "9"),
    ]


def test_rows_of_another_length_are_ignored():
    assert read_rows("1|\nerror: no\n1|2|3\n", ("a", "b")) == [{"a": "1", "b": ""}]
