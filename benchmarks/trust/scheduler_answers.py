"""Readers of what the commands of Slurm and PBS print."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.trust.mutations import Form
from benchmarks.trust.readers import Reader, texts
from leadline.catalog.read import TomlCatalog
from leadline.catalog.slurm.site import ClusterRecords, build_system
from leadline.catalog.slurm.text import (
    ASSOCIATION,
    QOS,
    from_sinfo,
    read_nodes,
    read_partitions,
    read_rows,
    read_slurm_config,
)
from leadline.catalog.toml_files import read_site
from leadline.catalog.write import format_site
from leadline.execution.clock import iso_utc
from leadline.execution.schedulers.pbs import parsing as pbs
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.schedulers.slurm import parsing as slurm
from tests.catalog.slurm import slurm_outputs

QUEUE = (
    "12|RUNNING|1767225600|1767225700|1:00:00|10:05|2|n[1-2]|leadline:k1|train-k1|None\n"
    "13_4|PENDING|1767225600|N/A|UNLIMITED|0:00|1|||sweep|Priority\n14|WEIRD|x|y|1-00:00:00|5|1|n3|c|name|a|b\n"
)
SACCT = (
    "12|FAILED|0:125|0:0|605|2026-01-01T00:00:00|2026-01-01T00:10:00|2026-01-01T00:20:00|60|2||16Gn|n[1-2]|train\n"
    "12.batch|OUT_OF_MEMORY|0:125||600|1767225600|1767225700|1767226300||1|15.5G|||batch\n"
    "13_[0-3,7%2]|CANCELLED by 0|0:0|0:0|0|1767225600|Unknown|Unknown|Partition_Limit|1||4Gc|None assigned|sweep\n"
    "13_4|TIMEOUT|1:15|0:0|60|1767225600|1767225700|1767225760|1|1|216K|1G|n3|sweep|x\n"
)
CONTROLLER = (
    "JobId=12 JobName=train JobState=RUNNING Reason=None ExitCode=0:0 RunTime=00:10:00 TimeLimit=01:00:00 "
    "SubmitTime=1767225600 StartTime=1767225700 EndTime=1767229300 NumNodes=1-1 NodeList=n1 Comment=leadline:k1\n"
    "JobId=14 ArrayJobId=13 ArrayTaskId=4 JobName=sweep JobState=PENDING Reason=Priority TimeLimit=UNLIMITED\n"
)
IDS = ("12", "13_4", "14", "13_0")
NAMES = "\x01 12\x01RUNNING\x01n1\x01leadline:k1\x01train-k1\x0113\x01PENDING\x01\x01\x01sweep-k2\x01"
SINFO = (
    "batch*|2-00:00:00|1-4|10|48|192000+|(null)|avx512|c[001-010]\n"
    "gpu|1-00:00:00|1-infinite|2|64|512000|gpu:a100:4(S:0-1)|a100|g[1-2]\n"
)
print_config: Callable[..., str] = slurm_outputs.config
SEPARATOR = "\n=====\n"
CLUSTER = SEPARATOR.join(
    (
        print_config("22.05.8"),
        slurm_outputs.V22_05_PARTITIONS,
        slurm_outputs.V22_05_NODES,
        slurm_outputs.QOS,
        slurm_outputs.ASSOCIATIONS,
    )
)
MODERN = SEPARATOR.join(
    (
        print_config("24.05.6"),
        slurm_outputs.V24_05_PARTITIONS,
        slurm_outputs.V24_05_NODES,
        slurm_outputs.QOS,
        slurm_outputs.ASSOCIATIONS,
    )
)
QSTAT = json.dumps(
    {
        "Jobs": {
            "4732778.pbs01": {
                "Job_Name": "train.4f2a90",
                "resources_used": {"mem": "1622428kb", "walltime": "24:05:32"},
                "job_state": "F",
                "exec_host": "node1299/0*48+node1300/0*48",
                "mtime": "Wed Mar 13 13:10:13 2024",
                "qtime": "Tue Mar 12 10:27:52 2024",
                "Resource_List": {"mem": "96gb", "nodect": 1, "walltime": "48:00:00"},
                "stime": "Tue Mar 12 13:04:41 2024",
                "comment": "Job run and finished",
                "Exit_status": 271,
            },
            "4732779[1].pbs01": {"Job_Name": "sweep.77aa", "job_state": "X", "Exit_status": -29},
        }
    }
)
QSTAT_TEXT = """\
Job Id: 9.head01.hpc.example.org
    Job_Name = train-mnist.5f0c2ab91d44
    resources_used.mem = 3624kb
    resources_used.walltime = 00:01:00
    job_state = C
    Resource_List.walltime = 00:01:00
    exit_status = 271
    Error_Path = login01:/home/ada/a rather long path that is bro
\tken/jobs/9.e
    exec_host = node07/0+node07/1
    qtime = Tue May 29 09:37:00 2018
    comp_time = 1527586681

Job Id: 10[2].head01
    job_state = Q
"""


def _answer(parse: Callable[[str], object]) -> Callable[[Path], object]:
    """Return a reader of a command's output, decoded as the process runner decodes it."""
    return lambda path: parse(path.read_bytes().decode("utf-8", "replace"))


def _times(status: SchedulerStatus) -> list[str]:
    """Return the times of a status as the plane stores them."""
    moments = (status.submitted_s, status.started_s, status.ended_s, status.expected_start_s)
    return [iso_utc(moment_s) for moment_s in moments if moment_s is not None]


def _all_times(statuses: Mapping[str, SchedulerStatus]) -> list[list[str]]:
    return [_times(status) for status in statuses.values()]


def _parse_cluster(text: str) -> object:
    """Build a system from the answers of a cluster, write it, and read it again, as ``systems probe`` does."""
    config, partitions, nodes, qos, associations = (text.split(SEPARATOR) + [""] * 5)[:5]
    records = ClusterRecords(
        read_slurm_config(config),
        read_partitions(partitions),
        read_nodes(nodes),
        read_rows(qos, QOS),
        read_rows(associations, ASSOCIATION),
        frozenset({"staff"}),
    )
    return _write_and_read(records)


def _parse_sinfo(text: str) -> object:
    partitions, nodes = from_sinfo(text)
    return _write_and_read(ClusterRecords({}, partitions, nodes))


def _write_and_read(records: ClusterRecords) -> object:
    probed = build_system(records, TomlCatalog(None).devices(), name="reef", site="reef", as_of="2026-01-01")
    return read_site(format_site([probed.system], site="reef", name="reef"), "reef.toml")


def _parse_qstat(text: str) -> object:
    jobs = pbs.read_qstat_json(text) or {}
    return [(_times(pbs.job_status(job)), pbs.job_key(job), pbs.ended_without_status(job)) for job in jobs.values()]


def _parse_qstat_text(text: str) -> object:
    return [(_times(pbs.job_status(job)), pbs.job_key(job)) for job in pbs.read_qstat_text(text).values()]


def _slurm(name: str, parse: Callable[[str], object], *corpus: str, weight: int = 1) -> Reader:
    return Reader(name, "execution", "output.txt", Form.TEXT, texts(*corpus), _answer(parse), weight, opens=False)


READERS = (
    _slurm("squeue", lambda text: _all_times(slurm.read_queue(text, IDS)), QUEUE, weight=2),
    _slurm("sacct of own jobs", lambda text: _all_times(slurm.read_accounting(text, IDS)), SACCT, weight=2),
    _slurm("scontrol show job", lambda text: _all_times(slurm.read_controller(text, IDS)), CONTROLLER, weight=2),
    _slurm("names of jobs", lambda text: slurm.read_names(slurm.records(text, "\x01", 6), ("k1", "k2")), NAMES),
    _slurm(
        "sbatch and its forecast",
        lambda text: (slurm.read_job_id(text), slurm.read_forecast(text)),
        "12;reef\n",
        "sbatch: Job 5 to start at 1795349658 using 1 processors on nodes n1 in partition batch\n",
    ),
    _slurm("qstat in JSON", _parse_qstat, QSTAT, weight=2),
    _slurm("qstat in text", _parse_qstat_text, QSTAT_TEXT, weight=2),
    _slurm("qsub", pbs.read_job_id, "12[].server\n"),
    Reader(
        "scontrol of a cluster",
        "catalog",
        "output.txt",
        Form.TEXT,
        texts(CLUSTER, MODERN),
        _answer(_parse_cluster),
        3,
        opens=False,
    ),
    Reader(
        "sinfo of a cluster", "catalog", "output.txt", Form.TEXT, texts(SINFO), _answer(_parse_sinfo), 2, opens=False
    ),
)
