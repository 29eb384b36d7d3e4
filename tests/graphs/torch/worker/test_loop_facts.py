"""Python objects of a data set, which forked workers copy by reading them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from leadline.graphs.torch.worker.loop_facts import PAGE_BYTES, object_bytes


class Data:
    def __init__(self, held):
        self.held = held


def test_arrays_and_tensors_are_one_object_whatever_they_hold():
    small, large = (object_bytes(Data([np.zeros(n), torch.zeros(n)])) for n in (10, 10**6))
    assert small == pytest.approx(large, abs=PAGE_BYTES)
    assert large < 3 * PAGE_BYTES


def test_names_and_labels_of_files_grow_with_their_number():
    """A tuple of 56 bytes around a name of 49 + 9: the labels are few and shared."""
    found = [object_bytes(Data([(f"{n:09}", n % 7) for n in range(count)])) for count in (10_000, 100_000)]
    assert pytest.approx(found[0], rel=0.05) == 10_000 * (64 + 58)
    assert 10 * found[0] == pytest.approx(found[1], rel=0.05)


def test_of_a_large_object_its_first_page_is_written_to():
    assert pytest.approx(object_bytes([bytes(10**5 + n) for n in range(50)]), rel=0.01) == 50 * PAGE_BYTES


def test_what_refers_to_itself_is_counted_once():
    ring = [str(2**40)]
    ring.append(ring)
    assert object_bytes(ring) < 200


class Files(Dataset):
    """Names and labels of files, which are all read; each sample tells what its worker holds for itself."""

    def __init__(self, count):
        self.items = [(f"/data/train/n01440764/n01440764_{n:06}.JPEG", n % 1000 + 1000) for n in range(count)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        name, label = self.items[place]
        assert label
        return private_bytes() if int(name[-11:-5]) % 1000 == 0 else 0


LOADS = """
import sys
sys.path.insert(0, sys.argv[1])
from torch.utils.data import DataLoader
import test_loop_facts as t
files = t.Files(200_000)
held = [int(one) for batch in DataLoader(files, 1000, shuffle=True, num_workers=2) for one in batch if one]
print(max(held) - min(held), t.object_bytes(files))
"""


def private_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells what a process holds for itself")
def test_a_real_worker_comes_to_hold_the_objects_of_the_whole_data_set():
    # in a process of its own: in one that has run other tests the objects lie among those that these have left
    words = [sys.executable, "-c", LOADS, str(Path(__file__).parent)]
    held_bytes, foretold_bytes = map(int, subprocess.run(words, capture_output=True, check=True).stdout.split())
    assert held_bytes == pytest.approx(foretold_bytes, rel=0.3)
