"""What a node says of itself, from the kernel's own files."""

from leadline.execution.wrapper.node import describe_node

INTEL = """processor\t: 0
model name\t: Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz
cpu MHz\t\t: 1000.031

processor\t: 1
model name\t: another
"""


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_node_reports_its_processor_cache_memory_and_gpus(tmp_path):
    cpu = "sys/devices/system/cpu"
    write(tmp_path, {
        "proc/cpuinfo": INTEL,
        "proc/meminfo": "MemTotal:       196608 kB\nMemFree:  1 kB\n",
        f"{cpu}/cpu0/cache/index0/size": "32K\n",
        f"{cpu}/cpu0/cache/index3/size": "28M\n",
        f"{cpu}/cpu0/cpufreq/cpuinfo_max_freq": "3700000\n",
        f"{cpu}/cpu1/online": "1\n",
        "proc/driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t\t Tesla V100-PCIE-16GB\nIRQ:   11\n",
        "proc/driver/nvidia/gpus/0000:af:00.0/information": "Model: \t\t Tesla V100-PCIE-16GB\n",
    })  # fmt: skip
    assert {
        "node_cpu": "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz",
        "node_cores": "2",
        "node_hz": "3700000000",
        "node_cache_bytes": str(28 * 2**20),
        "node_memory_bytes": str(192 * 2**20),
        "node_gpu": "Tesla V100-PCIE-16GB",
        "node_gpus": "2",
    } == describe_node(tmp_path)


def test_the_rate_is_the_highest_that_is_known_and_not_the_one_of_the_moment(tmp_path):
    write(tmp_path, {"proc/cpuinfo": INTEL})
    assert describe_node(tmp_path)["node_hz"] == "2400000000"
    write(tmp_path, {"proc/cpuinfo": "model name : AMD EPYC\ncpu MHz : 2249.998\n"})
    assert describe_node(tmp_path)["node_hz"] == "2200000000"


def test_unknown_node_properties_are_absent(tmp_path):
    assert {"node_cores"} == set(describe_node(tmp_path))
