"""Synthetic data sets in the formats and sizes of the real ones."""

import gzip
import io
import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy import sparse

WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not")


def mnist(folder: Path) -> None:
    """Write MNIST and FashionMNIST: 60,000 and 10,000 digits in idx files."""
    for name in ("MNIST", "FashionMNIST"):
        raw = folder / name / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for part, count in (("train", 60_000), ("t10k", 10_000)):
            pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8)
            files = {
                f"{part}-images-idx3-ubyte": struct.pack(">4i", 2051, count, 28, 28) + pixels.tobytes(),
                f"{part}-labels-idx1-ubyte": struct.pack(">2i", 2049, count) + bytes(n % 10 for n in range(count)),
            }
            for file, content in files.items():
                (raw / file).write_bytes(content)
                (raw / f"{file}.gz").write_bytes(gzip.compress(content, 1))


def cifar(folder: Path) -> None:
    """Write CIFAR-10 and CIFAR-100: 50,000 and 10,000 images in pickles."""
    rng = np.random.default_rng(0)
    ten, hundred = folder / "cifar-10-batches-py", folder / "cifar-100-python"

    def write(path: Path, count: int, **labels: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = {"data": rng.integers(0, 256, (count, 3072), np.uint8)}
        path.write_bytes(
            pickle.dumps(rows | {key: [n % classes for n in range(count)] for key, classes in labels.items()})
        )

    for number in range(1, 6):
        write(ten / f"data_batch_{number}", 10_000, labels=10)
    write(ten / "test_batch", 10_000, labels=10)
    write(hundred / "train", 50_000, fine_labels=100, coarse_labels=20)
    write(hundred / "test", 10_000, fine_labels=100, coarse_labels=20)
    (ten / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {n}" for n in range(10)]}))
    (hundred / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"class {n}" for n in range(100)]}))


def images(folder: Path) -> None:
    """Write a folder of JPEG files a class: 10 classes, 32 images each to train and 8 to test."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 32), ("val", 8)):
        for label in range(10):
            place = folder / "images" / part / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).resize((256, 256)).save(place / f"{number:04}.jpg")


def masks(folder: Path) -> None:
    """Write 40 photographs and their masks of two classes."""
    rng = np.random.default_rng(0)
    for name in ("imgs", "masks"):
        (folder / "masks" / name).mkdir(parents=True, exist_ok=True)
    for number in range(40):
        pixels = rng.integers(0, 256, (96, 128, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "masks" / "imgs" / f"{number:03}.png")
        mask = np.zeros((96, 128), np.uint8)
        mask[number : number + 40, 30:90] = 1
        Image.fromarray(mask).save(folder / "masks" / "masks" / f"{number:03}.png")


def text(folder: Path) -> None:
    """Write plain text: 2,000 lines to train, 200 to validate and to test, and a million characters."""
    draw = random.Random(0)  # noqa: S311 - a data set that repeats
    place = folder / "text"
    place.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 2000), ("valid", 200), ("test", 200)):
        lines = "\n".join(" ".join(draw.choices(WORDS, k=20)) for _ in range(count))
        (place / f"{part}.txt").write_text(lines + "\n", encoding="utf-8")
    # minGPT samples from these words, so their characters must be in the text.
    words = f"O God, O God! {' '.join(draw.choices(WORDS, k=300_000))}"
    (place / "input.txt").write_text(words[:1_000_000], encoding="utf-8")


def dialogues(folder: Path) -> None:
    """Write lines of JSON: 900 texts, 500 conversations, and 300 pairs of a chosen and a rejected answer."""
    draw = random.Random(0)  # noqa: S311 - a data set that repeats
    place = folder / "dialogues"
    place.mkdir(parents=True, exist_ok=True)

    def talk(question: str, words: int) -> list[dict[str, str]]:
        answer = " ".join(draw.choices(WORDS, k=words))
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    rows: dict[str, list[dict[str, object]]] = {
        "pretrain": [{"text": " ".join(draw.choices(WORDS, k=40))} for _ in range(900)],
        "sft": [{"conversations": talk(" ".join(draw.choices(WORDS, k=10)), 30)} for _ in range(500)],
        "dpo": [{"chosen": talk("a", 30), "rejected": talk("a", 30)} for _ in range(300)],
    }
    for name, lines in rows.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def tokens(folder: Path) -> None:
    """Write the token files of nanoGPT: characters of a small set, and words of GPT-2's."""
    rng = np.random.default_rng(0)
    for name, vocabulary in (("shakespeare_char", 65), ("openwebtext", 50_257)):
        place = folder / "tokens" / name
        place.mkdir(parents=True, exist_ok=True)
        for part, count in (("train", 1_000_000), ("val", 100_000)):
            rng.integers(0, vocabulary, count, np.uint16).tofile(place / f"{part}.bin")
    letters = [chr(33 + n) for n in range(65)]
    meta = {"vocab_size": 65, "itos": dict(enumerate(letters)), "stoi": {c: n for n, c in enumerate(letters)}}
    (folder / "tokens" / "shakespeare_char" / "meta.pkl").write_bytes(pickle.dumps(meta))


def sines(folder: Path) -> None:
    """Write 100 waves of 1,000 points as a tensor file."""
    (folder / "sines").mkdir(parents=True, exist_ok=True)
    waves = np.sin((np.arange(1000) + np.arange(100)[:, None]) / 20)
    torch.save(waves, folder / "sines" / "traindata.pt", pickle_protocol=4)


def bsds(folder: Path) -> None:
    """Write BSDS300: 200 photographs to train and 100 to test."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 200), ("test", 100)):
        place = folder / "BSDS300" / "images" / part
        place.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).resize((481, 321)).save(place / f"{number:04}.jpg")


def planetoid(folder: Path) -> None:
    """Write the citation graph Cora as pickles: 2,708 papers, 1,433 words, 7 classes."""
    place = folder / "Planetoid" / "Cora" / "raw"
    place.mkdir(parents=True, exist_ok=True)
    if not (folder / "Cora").exists():
        (folder / "Cora").symlink_to("Planetoid")
    draw = random.Random(0)  # noqa: S311 - a data set that repeats
    nodes = range(2708)
    graph = {node: [(node + 1) % 2708, (node - 1) % 2708, draw.randrange(2708)] for node in nodes}
    for name, count in (("", 140), ("t", 1000), ("all", 1708)):
        words = sparse.random(count, 1433, 0.012, "csr", np.float32, np.random.default_rng(0))
        (place / f"ind.cora.{name}x").write_bytes(pickle.dumps(words))
        classes = np.eye(7, dtype=np.int32)[[node % 7 for node in range(count)]]
        (place / f"ind.cora.{name}y").write_bytes(pickle.dumps(classes))
    (place / "ind.cora.graph").write_bytes(pickle.dumps(graph))
    (place / "ind.cora.test.index").write_text("\n".join(map(str, range(1708, 2708))), encoding="utf-8")


def keras(folder: Path) -> None:
    """Write MNIST in the file of Keras: 60,000 and 10,000 digits."""
    place = folder / "keras" / "datasets"
    place.mkdir(parents=True, exist_ok=True)
    sizes = {"train": 60_000, "test": 10_000}
    images = {f"x_{part}": np.zeros((count, 28, 28), np.uint8) for part, count in sizes.items()}
    labels = {f"y_{part}": np.arange(count).astype(np.uint8) % 10 for part, count in sizes.items()}
    np.savez_compressed(place / "mnist.npz", allow_pickle=False, **images, **labels)


def numpyro(folder: Path) -> None:
    """Link MNIST below the home folder in which NumPyro looks for it."""
    (folder / "numpyro").mkdir(parents=True, exist_ok=True)
    (folder / "numpyro" / ".data").symlink_to((folder / "MNIST" / "raw").absolute())


def tfds_mnist(folder: Path) -> None:
    """Write MNIST as TensorFlow Datasets stores it: 60,000 and 10,000 records, of which each class repeats one."""
    place = folder / "tfds" / "mnist" / "3.0.1"
    place.mkdir(parents=True, exist_ok=True)
    picture = io.BytesIO()
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(picture, "PNG")
    records = [_record(_example(picture.getvalue(), label)) for label in range(10)]
    splits = []
    for name, count in (("train", 60_000), ("test", 10_000)):
        content = b"".join(records[number % 10] for number in range(count))
        (place / f"mnist-{name}.tfrecord-00000-of-00001").write_bytes(content)
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        splits.append(
            {"name": name, "shardLengths": [str(count)], "numBytes": str(len(content)), "filepathTemplate": template}
        )
    keys = {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}}
    info = {
        "name": "mnist",
        "version": "3.0.1",
        "fileFormat": "tfrecord",
        "moduleName": "mnist",
        "splits": splits,
        "supervisedKeys": keys,
    }
    (place / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    features = "tensorflow_datasets.core.features"
    image = {"shape": {"dimensions": ["28", "28", "1"]}, "dtype": "uint8", "encodingFormat": "png"}
    members = {
        "image": {"pythonClassName": f"{features}.image_feature.Image", "image": image},
        "label": {"pythonClassName": f"{features}.class_label_feature.ClassLabel", "classLabel": {"numClasses": "10"}},
    }
    tree = {"pythonClassName": f"{features}.features_dict.FeaturesDict", "featuresDict": {"features": members}}
    (place / "features.json").write_text(json.dumps(tree), encoding="utf-8")
    (place / "label.labels.txt").write_text("\n".join(map(str, range(10))) + "\n", encoding="utf-8")


def _example(picture: bytes, label: int) -> bytes:
    """Return a ``tf.train.Example`` of an image and its class, as a protocol buffer."""
    image, number = _field(1, _field(1, picture)), _field(3, _field(1, bytes([label])))
    entries = (_field(1, b"image") + _field(2, image), _field(1, b"label") + _field(2, number))
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def _field(number: int, content: bytes) -> bytes:
    length, prefix = len(content), [number << 3 | 2]
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes([*prefix, length]) + content


def _record(content: bytes) -> bytes:
    """Return a record of a TFRecord file: length and content, each with its checksum."""
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    """Return the CRC-32C, rotated and shifted as in TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def ett(folder: Path) -> None:
    """Write ETTh1 as CSV: 17,420 hours of seven series."""
    (folder / "ett").mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).normal(size=(17_420, 7)).round(3)
    hours = np.datetime64("2016-07-01T00") + np.arange(len(values))
    rows = [
        f"{hour}:00:00,{','.join(map(str, row))}".replace("T", " ") for hour, row in zip(hours, values, strict=True)
    ]
    header = "date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"
    (folder / "ett" / "ETTh1.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def lego(folder: Path) -> None:
    """Write views of an object with its cameras, as the synthetic data set of NeRF: 20 to train, 4 and 8 others."""
    rng = np.random.default_rng(0)
    camera = np.eye(4)
    camera[2, 3] = 4
    for part, count in (("train", 20), ("val", 4), ("test", 8)):
        place = folder / "lego" / part
        place.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(rng.integers(0, 256, (200, 200, 4), np.uint8)).save(place / f"r_{number}.png")
        frames = [{"file_path": f"./{part}/r_{number}", "transform_matrix": camera.tolist()} for number in range(count)]
        text = json.dumps({"camera_angle_x": 0.69, "frames": frames})
        (folder / "lego" / f"transforms_{part}.json").write_text(text, encoding="utf-8")


def shapenet(folder: Path) -> None:
    """Write point clouds of three classes with labelled parts: 40 each to train, 4 to validate and 12 to test."""
    rng = np.random.default_rng(0)
    kinds = {"Airplane": "02691156", "Bag": "02773838", "Chair": "03001627"}
    place = folder / "shapenet"
    (place / "train_test_split").mkdir(parents=True, exist_ok=True)
    names = "".join(f"{kind}\t{number}\n" for kind, number in kinds.items())
    (place / "synsetoffset2category.txt").write_text(names, encoding="utf-8")
    for part, count in (("train", 40), ("val", 4), ("test", 12)):
        files = [f"shape_data/{kind}/{part}{number:04}" for kind in kinds.values() for number in range(count)]
        for kind, name in (file.split("/")[1:] for file in files):
            for inside, content in (("points", rng.normal(size=(300, 3))), ("points_label", rng.integers(1, 3, 300))):
                (place / kind / inside).mkdir(parents=True, exist_ok=True)
                np.savetxt(place / kind / inside / f"{name}.{'pts' if inside == 'points' else 'seg'}", content, "%g")
        text = json.dumps(files)
        (place / "train_test_split" / f"shuffled_{part}_file_list.json").write_text(text, encoding="utf-8")


def headlines(folder: Path) -> None:
    """Write 18,000 Chinese headlines of ten classes."""
    draw = random.Random(0)  # noqa: S311 - a data set that repeats
    letters = [chr(0x4E00 + number) for number in range(2000)]
    lines = [f"{''.join(draw.choices(letters, k=draw.randrange(10, 30)))}\t{n % 10}\n" for n in range(18_000)]
    (folder / "headlines").mkdir(parents=True, exist_ok=True)
    (folder / "headlines" / "train.txt").write_text("".join(lines), encoding="utf-8")


def boxes(folder: Path) -> None:
    """Write 64 photographs to train and 16 to validate, each with three boxes in the format of YOLO."""
    rng = np.random.default_rng(0)
    place = folder / "boxes"
    for part, count in (("train", 64), ("val", 16)):
        for kind in ("images", "labels"):
            (place / kind / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (120, 160, 3), np.uint8)
            Image.fromarray(pixels).save(place / "images" / part / f"{number:04}.jpg")
            rows = "".join(f"{number % 3} {0.3 + 0.1 * row:.1f} 0.5 0.2 0.3\n" for row in range(3))
            (place / "labels" / part / f"{number:04}.txt").write_text(rows, encoding="utf-8")
    names = "train: images/train\nval: images/val\nnames: [a, b, c]\n"
    (place / "data.yaml").write_text(f"path: {place.absolute()}\n{names}", encoding="utf-8")
    font = next((file for root in folder.parent.glob("*/lib") for file in root.rglob("DejaVuSans.ttf")), None)
    if font is not None:  # YOLOv5 would download it
        (place / "Arial.ttf").write_bytes(font.read_bytes())


def llama(folder: Path) -> None:
    """Write token files of two small language models, and the settings of a small UNet."""
    rng = np.random.default_rng(0)
    for name in ("tok2048", "unet"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(3):
        rng.integers(0, 2048, 200_000, np.uint16).tofile(folder / "tok2048" / f"data{number:02}.bin")
    rng.integers(0, 60_000, 1000 * 512, np.uint16).tofile(folder / "pretrain_data.bin")
    kinds = {side: [f"{side}Block2D", f"Attn{side}Block2D", f"{side}Block2D"] for side in ("Down", "Up")}
    settings = {"sample_size": 64, "layers_per_block": 1, "block_out_channels": [32, 64, 64]}
    settings |= {"down_block_types": kinds["Down"], "up_block_types": kinds["Up"]}
    (folder / "unet" / "config.json").write_text(json.dumps(settings), encoding="utf-8")


def checksums(folder: Path) -> None:
    """Let torchvision and Keras accept synthetic files, whose checksums differ from those of the real ones."""
    checks = (
        ("torchvision/datasets/utils.py", "md5 == calculate_md5(fpath, **kwargs)"),
        ("keras/src/utils/file_utils.py", "str(hash_file(fpath, hasher, chunk_size)) == str(file_hash)"),
    )
    for path, check in checks:
        for file in folder.parent.glob(f"*/lib/python3*/site-packages/{path}"):
            file.write_text(file.read_text(encoding="utf-8").replace(check, "True"), encoding="utf-8")


RECIPES: dict[str, Callable[[Path], None]] = {
    recipe.__name__.replace("_", "-"): recipe
    for recipe in (
        mnist,
        cifar,
        images,
        masks,
        text,
        dialogues,
        tokens,
        sines,
        bsds,
        planetoid,
        keras,
        numpyro,
        tfds_mnist,
        ett,
        lego,
        shapenet,
        headlines,
        boxes,
        llama,
        checksums,
    )
}
