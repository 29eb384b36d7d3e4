"""What is read of a process tree."""

from leadline.core.units import MIB
from leadline.execution.processes import run_process
from leadline.execution.wrapper.sampling import TreeSampler, gpu_memory_bytes


def test_gpu_memory_counts_only_the_jobs_own_processes():
    listing = "101, 1024\n102, 512\n999, 4096\n103, [N/A]\nNo running processes found\n"
    assert gpu_memory_bytes(listing, {101, 102, 103}) == 1536 * MIB


def test_sampling_starts_fast_and_backs_off():
    sampler = TreeSampler(run_process)
    assert sampler.next_interval_s(0.0) == 0.1
    assert sampler.next_interval_s(10.0) == 0.5
    assert sampler.next_interval_s(3600.0) == 1.0


def test_an_expensive_sample_is_taken_less_often():
    sampler = TreeSampler(run_process, _cost_s=0.05)
    assert sampler.next_interval_s(3600.0) == 5.0
