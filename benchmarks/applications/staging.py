"""Stage a data set: write shards of records to disk, synced, and read them back shuffled, past the page cache."""

import argparse
import os
import random
import shutil
import tempfile
import zlib


def write(path, mebibytes, rng):
    """Write one shard and wait until it is on the disk."""
    block = rng.randbytes(2**20)
    with open(path, "wb") as stream:
        stream.writelines(block for _ in range(mebibytes))
        stream.flush()
        os.fsync(stream.fileno())


def records(path, record_bytes, rng):
    """Yield a shard's records in random order, from the disk rather than from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        places = list(range(0, os.fstat(descriptor).st_size, record_bytes))
        rng.shuffle(places)
        for place in places:
            yield os.pread(descriptor, record_bytes, place)
    finally:
        os.close(descriptor)


def shuffled(stream, held, rng):
    """Yield what ``stream`` yields, shuffled further through a buffer that holds so many records."""
    buffer = []
    for record in stream:
        if len(buffer) < held:
            buffer.append(record)
            continue
        place = rng.randrange(held)
        yield buffer[place]
        buffer[place] = record
    yield from buffer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--shard-mib", type=int, default=8)
    parser.add_argument("--record-kib", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--buffer-mib", type=int, default=64)
    parser.add_argument("--folder", default=None)
    args = parser.parse_args()

    rng = random.Random(0)
    folder = tempfile.mkdtemp(prefix="staging-", dir=args.folder)
    try:
        paths = [os.path.join(folder, f"shard-{number:05d}.bin") for number in range(args.shards)]
        for path in paths:
            write(path, args.shard_mib, rng)
        for epoch in range(args.epochs):
            rng.shuffle(paths)
            check = 0
            stream = (record for path in paths for record in records(path, 1024 * args.record_kib, rng))
            for record in shuffled(stream, max(1, 1024 * args.buffer_mib // args.record_kib), rng):
                check = zlib.crc32(record, check)
            print(f"epoch {epoch}: checksum {check:08x}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
