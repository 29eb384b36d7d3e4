"""Python objects of a data set, which forked workers copy by reading them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from leadline.graphs.torch.worker.object_sizes import PAGE_BYTES, object_bytes


class Data:
    def __init__(self, content):
        self.content = content


def test_arrays_and_tensors_count_as_one_object():
    small, large = (object_bytes(Data([np.zeros(n), torch.zeros(n)])) for n in (10, 10**6))
    assert small == pytest.approx(large, abs=PAGE_BYTES)
    assert large < 3 * PAGE_BYTES


def test_names_and_labels_of_files_grow_with_their_number():
    """A tuple of 56 bytes around a name of 49 + 9: the labels are few and shared."""
    sizes = [object_bytes(Data([(f"{n:09}", n % 7) for n in range(count)])) for count in (10_000, 100_000)]
    assert pytest.approx(sizes[0], rel=0.05) == 10_000 * (64 + 58)
    assert 10 * sizes[0] == pytest.approx(sizes[1], rel=0.05)


def test_a_large_object_counts_by_its_first_page():
    assert pytest.approx(object_bytes([bytes(10**5 + n) for n in range(50)]), rel=0.01) == 50 * PAGE_BYTES


def test_an_object_that_refers_to_itself_counts_once():
    ring = [str(2**40)]
    ring.append(ring)
    assert object_bytes(ring) < 200


class Files(Dataset):
    """Names and labels of files, which are all read; some tell what their worker has come to hold."""

    def __init__(self, count):
        self.held_before_bytes = None  # each worker notes in its own copy what it held before its first sample
        self.items = [(f"/data/train/n01440764/n01440764_{n:06}.JPEG", n % 1000 + 1000) for n in range(count)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        if self.held_before_bytes is None:
            self.held_before_bytes = private_bytes()
        name, label = self.items[place]
        assert label
        return private_bytes() - self.held_before_bytes if int(name[-11:-5]) % 1000 == 0 else 0


LOADS = """
import sys
sys.path.insert(0, sys.argv[1])
from torch.utils.data import DataLoader
import test_object_sizes as t
files = t.Files(200_000)
held = max(int(batch.max()) for batch in DataLoader(files, 1000, shuffle=True, num_workers=2))
print(held, t.object_bytes(files))
"""


def private_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells what a process holds for itself")
def test_a_real_worker_holds_the_objects_of_the_whole_data_set():
    # in a process of its own: in one that has run other tests the objects lie among those that these have left
    words = [sys.executable, "-c", LOADS, str(Path(__file__).parent)]
    held_bytes, foretold_bytes = map(int, subprocess.run(words, capture_output=True, check=True).stdout.split())
    assert held_bytes == pytest.approx(foretold_bytes, rel=0.3)
