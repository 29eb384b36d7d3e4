"""What Slurms of several versions print, by version; each says where the form of its lines comes from.

The figures are made up, but for those of V22_05, which a cluster of Debian's Slurm 22.05.8 printed, and of the partitions
of V24_05, which are published. The keys, their order, the double spaces and the way absent values are written
are those of the sources named at each.
"""

CONFIG = """Configuration data as of 2026-03-02T10:00:00
AccountingStorageEnforce = {enforce}
AccountingStorageHost   = db01
AccountingStorageTRES   = {tres}
AccountingStorageType   = {accounting}
BOOT_TIME               = 2026-02-01T08:00:00
ClusterName             = {cluster}
CommunicationParameters = (null)
DefMemPerNode           = UNLIMITED
EnforcePartLimits       = {part_limits}
JobAcctGatherFrequency  = {frequency}
MaxArraySize            = {array}
PluginDir               = /usr/lib64/slurm
PowerPlugin             =
PreemptMode             = {preempt_mode}
PreemptType             = {preempt_type}
PriorityFlags           = {flags}
PriorityType            = priority/multifactor
PrivateData             = none
SelectType              = {select}
SelectTypeParameters    = CR_CORE_MEMORY
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = {version}

Slurmctld(primary) at ctl01 is UP
"""
"""``scontrol show config``: ``slurm_print_ctl_conf`` prints name, padding, ``=`` and value in every version here, as the
22.05.8 at hand did; names without a value print ``(null)`` or nothing."""


def config(version, **changes):
    """Return the configuration of a cluster with the usual settings but for ``changes``."""
    usual = {
        "enforce": "associations,limits,qos", "tres": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu",
        "accounting": "accounting_storage/slurmdbd", "cluster": "reef", "part_limits": "ALL", "frequency": "30",
        "array": "1001", "preempt_mode": "OFF", "preempt_type": "preempt/none", "flags": "",
        "select": "select/cons_tres", "version": version,
    }  # fmt: skip
    return CONFIG.format(**(usual | changes))


V20_11_PARTITIONS = (
    "PartitionName=batch AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED "
    "MaxTime=2-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=c[001-002] PriorityJobFactor=1 PriorityTier=1 "
    "RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=96 TotalNodes=2 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerCPU=3800 MaxMemPerNode=UNLIMITED\n"
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=1 MaxTime=1-00:00:00 MinNodes=0 "
    "LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=g001 PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO "
    "OverSubscribe=EXCLUSIVE OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=28 TotalNodes=1 "
    "SelectTypeParameters=NONE JobDefaults=DefMemPerGPU=29440 DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED "
    "TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=2.0\n"
)
"""``slurm_sprint_partition_info`` of src/api/partition_info.c as it was before MaxCPUsPerSocket (23.02); some 20.11
print no ``TRES=``."""
V20_11_NODES = "".join(
    f"NodeName={name} Arch=x86_64 CoresPerSocket=24  CPUAlloc=0 CPUTot=48 CPULoad=0.01 AvailableFeatures=cascade "
    f"ActiveFeatures=cascade Gres=(null) NodeAddr={name} NodeHostName={name} Version=20.11.8 "
    "OS=Linux 3.10.0-1160.25.1.el7.x86_64 #1 SMP Wed Apr 28 21:49:45 UTC 2021  RealMemory=190000 AllocMem=0 "
    "FreeMem=186591 Sockets=2 Boards=1 State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=6 Owner=N/A MCS_label=N/A "
    "Partitions=batch  BootTime=2026-01-14T07:23:47 SlurmdStartTime=2026-01-23T07:40:56 "
    "CfgTRES=cpu=48,mem=190000M,billing=48 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s "
    "ExtSensorsWatts=0 ExtSensorsTemp=n/s Comment=(null)\n"
    for name in ("c001", "c002")
) + (
    "NodeName=g001 Arch=x86_64 CoresPerSocket=14  CPUAlloc=0 CPUTot=28 CPULoad=0.01 AvailableFeatures=broadwell,prod "
    "ActiveFeatures=broadwell,prod Gres=gpu:k80:8(S:0-1) NodeAddr=g001 NodeHostName=g001 Version=20.11.8 "
    "OS=Linux 3.10.0-1160.25.1.el7.x86_64 #1 SMP Wed Apr 28 21:49:45 UTC 2021  RealMemory=512000 AllocMem=0 "
    "FreeMem=486591 Sockets=2 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=6 Owner=N/A MCS_label=N/A "
    "Partitions=gpu  BootTime=2026-01-14T07:23:47 SlurmdStartTime=2026-01-23T07:40:56 "
    "CfgTRES=cpu=28,mem=500G,billing=181,gres/gpu=8 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 "
    "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s "
    "Reason=GPU 3: Xid=79, Gres=gpu:k80:7 now [root@2026-01-30T09:12:00] Comment=see ticket State=open\n"
)
"""As printed by 21.08.8 (a site's public cheat sheet, ``scontrol show node c2180``), which knows no CPUEfctv (22.05)."""

V22_05_PARTITIONS = (
    "PartitionName=short AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=00:10:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=01:00:00 "
    "MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=one,two PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO "
    "OverSubscribe=NO OverTimeLimit=NONE PreemptMode=REQUEUE State=UP TotalCPUs=8 TotalNodes=2 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerCPU=500 MaxMemPerNode=UNLIMITED "
    "TRES=cpu=8,mem=8000M,node=2,billing=8,gres/gpu=2\n"
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=1 MaxTime=2-00:00:00 MinNodes=0 "
    "LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=two PriorityJobFactor=1 PriorityTier=5 RootOnly=NO ReqResv=NO "
    "OverSubscribe=NO OverTimeLimit=NONE PreemptMode=REQUEUE State=UP TotalCPUs=4 TotalNodes=1 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerCPU=500 MaxMemPerNode=UNLIMITED "
    "TRES=cpu=4,mem=4000M,node=1,billing=30,gres/gpu=2 TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=15.0\n"
)
V22_05_NODES = (
    "NodeName=one Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=0.41 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=(null) NodeAddr=127.0.0.1 NodeHostName=vm Port=60443 Version=22.05.8 "
    "OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=4000 AllocMem=0 FreeMem=22294 Sockets=4 Boards=1 "
    "State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=short  "
    "BootTime=2026-11-22T02:06:39 SlurmdStartTime=2026-11-22T11:47:02 LastBusyTime=2026-11-22T11:47:03 "
    "CfgTRES=cpu=4,mem=4000M,billing=4 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s "
    "ExtSensorsWatts=0 ExtSensorsTemp=n/s Reason=Not responding: RealMemory=1 State=x CPUTot=9 "
    "[root@2026-11-22T11:47:03]\n"
    "NodeName=two Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=0.41 AvailableFeatures=a100,big "
    "ActiveFeatures=a100,big Gres=gpu:a100:2 NodeAddr=127.0.0.1 NodeHostName=vm Port=59129 Version=22.05.8 "
    "OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=4000 AllocMem=0 FreeMem=22294 Sockets=4 Boards=1 "
    "State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=short,gpu  "
    "BootTime=2026-11-22T02:06:39 SlurmdStartTime=2026-11-22T11:47:02 LastBusyTime=2026-11-22T11:47:03 "
    "CfgTRES=cpu=4,mem=4000M,billing=30,gres/gpu=2 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 "
    "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s Comment=hello Gres=gpu:8 world Extra=x y\n"
)
"""Printed by Debian's 22.05.8, with a reason and a comment set to look like keys."""

V24_05_H100 = (
    "PartitionName=h100 AllowGroups=ALL AllowAccounts=ALL DenyQos=summer AllocNodes=ALL Default=NO QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO ExclusiveTopo=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED "
    "MaxTime=3-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=124 MaxCPUsPerSocket=UNLIMITED NodeSets=h100 "
    "Nodes=gh[101-132] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=YES:4 OverTimeLimit=NONE "
    "PreemptMode=REQUEUE State=UP TotalCPUs=4096 TotalNodes=32 SelectTypeParameters=NONE JobDefaults=DefCpuPerGPU=30 "
    "DefMemPerCPU=12000 MaxMemPerCPU=12000 TRES=cpu=3968,mem=49504000M,node=32,billing=4027,gres/gpu=128 "
    "TRESBillingWeights=CPU=1,Mem=0.0833G,GRES/gpu=2\n"
)
"""As a site's public guide shows it (``scontrol show partition=h100``), with its figures. ExclusiveTopo came with 24.05 (its
changelog)."""
V23_11_PARTITIONS = V24_05_H100.replace(" ExclusiveTopo=NO", "")
"""The same as 23.11 writes it, which has MaxCPUsPerSocket (23.02), and no ExclusiveTopo."""
V23_11_NODES = "".join(
    f"NodeName=gh{number} Arch=x86_64 CoresPerSocket=64  CPUAlloc=0 CPUEfctv=124 CPUTot=128 CPULoad=2.31 "
    "AvailableFeatures=h100 ActiveFeatures=h100 Gres=gpu:nvidia_h100_80gb_hbm3:4(S:0-1) "
    f"NodeAddr=gh{number} NodeHostName=gh{number} Version=23.11.3 OS=Linux 5.14.0-687.24.1.el9_8.x86_64 "
    "#1 SMP PREEMPT_DYNAMIC Thu Jul 9 16:32:56 UTC 2026  RealMemory=1547000 AllocMem=0 FreeMem=401230 Sockets=2 "
    "Boards=1 CoreSpecCount=4 CPUSpecList=62-63,126-127 MemSpecLimit=16000 State=MIXED+PLANNED ThreadsPerCore=1 "
    "TmpDisk=0 Weight=10 Owner=N/A MCS_label=N/A Partitions=h100  BootTime=2026-07-13T10:15:51 "
    "SlurmdStartTime=2026-07-20T12:39:41 LastBusyTime=2026-08-24T20:18:53 ResumeAfterTime=None "
    "CfgTRES=cpu=124,mem=1547000M,billing=125,gres/gpu=4 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 "
    "ExtSensorsJoules=n/a ExtSensorsWatts=0 ExtSensorsTemp=n/a\n"
    for number in range(101, 133)
)
"""As printed by 23.11.3 (public notes of a site); CoreSpecCount and MemSpecLimit stand where node_info.c prints them."""

V24_05_STANDARD = (
    "PartitionName=standard AllowGroups=ALL DenyAccounts=none AllowQos=ALL AllocNodes=ALL Default=YES QoS=standard "
    "DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO ExclusiveTopo=NO GraceTime=0 Hidden=NO MaxNodes=1 "
    "MaxTime=6-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED MaxCPUsPerSocket=UNLIMITED NodeSets=compute_small "
    "Nodes=compute[0001-0561] PriorityJobFactor=1 PriorityTier=2 RootOnly=NO ReqResv=NO OverSubscribe=NO "
    "OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=71808 TotalNodes=561 SelectTypeParameters=NONE "
    "JobDefaults=(null) DefMemPerCPU=1930 MaxMemPerNode=UNLIMITED "
    "TRES=cpu=71808,mem=180600000M,node=561,billing=248175 TRESBillingWeights=cpu=1.0,mem=1G\n"
)
"""As the tests of a public workflow manager's Slurm plug-in quote it: weights in lower case, and Slurm's own billing of
the whole partition, which their sum gives."""

V24_05_PARTITIONS = V24_05_STANDARD + V24_05_H100
V24_05_NODES = V23_11_NODES.replace("23.11.3", "24.05.6").replace(" State=", " RestrictedCoresPerGPU=2(62-63)  State=")
"""As 23.11, with RestrictedCoresPerGPU (24.05, its changelog) where node_info.c prints it."""
V25_05_PARTITIONS = V24_05_H100
"""As 24.05; no difference of its own was found in a public source."""
V25_05_NODES = (
    "NodeName=gh101 Arch=x86_64 CoresPerSocket=64  CPUAlloc=0 CPUEfctv=124 CPUTot=128 CPULoad=0.10 "
    "AvailableFeatures=h100 ActiveFeatures=h100 Gres=gpu:nvidia_h100_80gb_hbm3:4(S:0-1),gpu:1g.10gb:7,shard:16 "
    "NodeAddr=gh101 NodeHostName=gh101 Version=25.05.2 "
    "OS=Linux 7.0.0-22-generic #22-Ubuntu SMP PREEMPT_DYNAMIC Mon May 25 15:54:34 UTC 2026  "
    "RealMemory=1547000 AllocMem=0 FreeMem=14769 Sockets=2 Boards=1 RestrictedCoresPerGPU=2(62-63) "
    "State=IDLE ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=h100  "
    "BootTime=2026-06-16T10:02:01 SlurmdStartTime=2026-06-16T10:02:13 LastBusyTime=2026-06-16T11:09:07 "
    "ResumeAfterTime=None CfgTRES=cpu=124,mem=1547000M,billing=125,gres/gpu=11 AllocTRES= CurrentWatts=0 AveWatts=0 "
    "InstanceId=i-1 InstanceType=p5 ReservationName=maint\n"
)
"""``slurm_sprint_node_table`` of src/api/node_info.c in a source later than 24.05, which prints no CapWatts and no
ExtSensors (nor does the 25.11.2 that a public test quotes), and the optional keys InstanceId and ReservationName. A guide's
25.05.5 still has CapWatts and ExtSensors, as 23.11."""

QOS = (
    "normal||1.000000|||cpu=512|cpu=1024|||1000\n"
    "long||2.000000||14-00:00:00|cpu=128,gres/gpu=2|||gres/gpu=1|10\n"
    "free||0.000000||12:00:00|||||\n"
    "standard|DenyOnLimit|1.000000||||node=4||node=1|\n"
    "wide|OverPartQOS,PartitionTimeLimit|1.000000|free|30-00:00:00|||||\n"
)
"""``sacctmgr -n -P show qos`` in the fields asked for, as 22.05.8 printed such rows (the last field is empty but there)."""
ASSOCIATIONS = (
    "research|ada||free,long,normal|normal|3-00:00:00|node=2||50|\n"
    "research|||free,long,normal|normal|3-00:00:00|node=2|gres/gpu=6||science\n"
)
"""``sacctmgr -n -P show assoc`` likewise; the row without a user is the account's own, with what its users share and its parent."""
