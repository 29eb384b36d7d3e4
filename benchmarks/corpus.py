"""The unmodified training scripts that tracing is measured on, with the true facts of each."""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class Script:
    """One script, its arguments, and the facts of its loop under them.

    Attributes:
        shows: The features that it exercises.
        batch: Samples of a forward pass; None without a module or a loader to read it from.
        steps_per_epoch: Optimizer steps in an epoch, of the optimizer that steps most rarely.
        epochs: Passes over the data set.
        workers: Loader processes with a GPU; some scripts start them only then.
        parameters: Trained weights, shared ones counted once.
        frozen: Further weights on the device, such as an averaged copy of the model.
        stops_early: The script may decide to end before its last step.
        processes: Processes that torchrun starts; zero for a plain start.
        same_on_cpu: The script runs the same kernels on a CPU when it is traced for a CPU.
    """

    name: str
    shows: str
    argv: tuple[str, ...] = ()
    batch: int | None = None
    steps_per_epoch: int | None = None
    epochs: float | None = None
    parameters: int = 0
    accumulation: int = 1
    frozen: int = 0
    samples: int | None = None
    evaluation_batches: float | None = None  # of an epoch
    workers: int = 0
    processes: int = 0
    needs: tuple[str, ...] = ()
    stops_early: bool = False
    same_on_cpu: bool = False

    @property
    def path(self) -> Path:
        """Return the script's file."""
        return FOLDER / f"{self.name}.py"

    def command(self) -> tuple[str, ...]:
        """Return the command a user would type, with this Python."""
        start: tuple[str, ...] = (sys.executable,)
        if self.processes:
            start = (*start, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={self.processes}")
        return (*start, str(self.path), *self.argv)

    def missing(self) -> tuple[str, ...]:
        """Return the packages it needs that are not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)


CORPUS: tuple[Script, ...] = (
    Script("digits_cnn", "reader that calls .numpy(), transform, test between epochs, scheduler, formatted losses",
           ("--epochs", "2"), 64, 24, 2, 151_306, samples=1500, evaluation_batches=3, workers=1, same_on_cpu=True),
    Script("resnet_amp", "autocast, GradScaler, unscale and clip, channels-last, workers, batch norm, top-k accuracy",
           ("--epochs", "2", "--amp"), 16, 6, 2, 175_258, samples=96, evaluation_batches=1, workers=2),
    Script("vae", "torch.accelerator, losses added up by .item(), .cpu().numpy() of a grid",
           ("--epochs", "2"), 128, 12, 2, 76_104, samples=1500, evaluation_batches=3, workers=1, same_on_cpu=True),
    Script("dcgan", "two models, two optimizers, three backward passes an iteration, weights filled by hand",
           ("--niter", "2"), 16, 8, 2, 187_296, samples=128, workers=2, same_on_cpu=True),
    Script("word_lm", "LSTM with tied weights, no loader, updates by hand, clipping, math.exp of the loss",
           ("--epochs", "2"), 20, 13, 2, 126_620),
    Script("regression", "endless loop until the loss is small, updates by hand",
           (), 32, 400, 1, 5, stops_early=True),
    Script("manual_linear", "tensors with requires_grad and no module, w -= lr * w.grad, full batch",
           (), None, 200, 1, 2048),
    Script("char_gpt", "batches cut from a memmap, accumulation, fused AdamW, tied weights, attention, while True",
           ("--max_iters", "6"), 12, 7, 1, 106_880, accumulation=2, evaluation_batches=10, same_on_cpu=True),
    Script("imagenet_main", "--dummy data, meters that format tensors, DataParallel, checkpoint files, depthwise CNN",
           ("--dummy", "--epochs", "2"), 8, 8, 2, 118_304, samples=64, evaluation_batches=2, workers=2,
           same_on_cpu=True),
    Script("sine_lbfgs", "LBFGS with a closure, LSTM cells in a Python loop, float64",
           ("--steps", "4"), 17, 4, 1, 32_284),
    Script("text_rnn", "packed sequences, collate function, bidirectional GRU, tqdm postfix, masks",
           ("--num-epochs", "2"), 32, 20, 2, 142_401, samples=640, evaluation_batches=3, workers=2),
    Script("siamese", "two inputs through one backbone, random pairs, .squeeze(), torch.where",
           ("--epochs", "2"), 64, 19, 2, 9_025, samples=1200, evaluation_batches=3, workers=1, same_on_cpu=True),
    Script("unet", "PIL images, dictionary batches, bf16 autocast, dice loss, evaluation inside the epoch",
           ("--epochs", "2", "--amp"), 8, 9, 2, 29_865, samples=72, evaluation_batches=5.4, workers=2),
    Script("vit", "transformer encoder, accumulation, copied EMA model, OneCycle schedule, saved checkpoint",
           ("--epochs", "2"), 32, 11, 2, 152_202, accumulation=4, frozen=152_202, samples=1437, evaluation_batches=2,
           same_on_cpu=True),
    Script("policy_gradient", "reinforcement learning: sampled actions by .item(), Categorical, itertools.count",
           ("--max-episodes", "6"), 1, 6, 1, 898, stops_early=True, same_on_cpu=True),
    Script("gcn", "message passing with index_add_ and scatter, full batch, index masks",
           ("--epochs", "6"), 600, 1, 6, 4_357, same_on_cpu=True),
    Script("custom_function", "autograd.Function, activation checkpointing, stream data set, while step < max_steps",
           ("--max-steps", "6"), 128, 6, 1, 448_525, same_on_cpu=True),
    Script("compiled_mlp", "torch.compile of a module and of a loss, random_split, early stopping",
           ("--epochs", "2", "--backend", "aot_eager"), 64, 6, 2, 133_889, samples=354, evaluation_batches=1),
    Script("moe", "experts chosen by top-k, torch.where and nonzero, boolean masks, registered buffers",
           ("--steps", "6"), 16, 6, 1, 240_896),
    Script("triplet_embedding", "PIL files, custom batch sampler, mined triplets, weight norm, cdist",
           ("--epochs", "2"), 30, 12, 2, 27_264, samples=400, workers=2, same_on_cpu=True),
    Script("seq2seq", "encoder and decoder with their own optimizers, data kept on the device, topk decoding",
           (), 32, 16, 6, 72_909, samples=512),
    Script("hf_trainer", "Hugging Face Trainer with accumulation, evaluation and metrics", ("--num_train_epochs", "2"),
           8, 10, 2, 139_586, accumulation=2, samples=160, evaluation_batches=2, needs=("transformers", "accelerate")),
    Script("hf_causal_loop", "a transformers model in a loop by hand, gradient checkpointing", ("--num_epochs", "2"),
           4, 16, 2, 190_272, samples=64, needs=("transformers",), same_on_cpu=True),
    Script("lightning_autoencoder", "Lightning with accumulation and validation", ("--max_epochs", "2"),
           64, 10, 2, 13_265, accumulation=2, samples=1280, evaluation_batches=9, needs=("lightning",),
           same_on_cpu=True),
    Script("skipgram", "sparse embeddings, SparseAdam, pairs made by a collate function, vectors written as text",
           ("--epochs", "2"), 16, 30, 2, 15_360, samples=480),
    Script("convnext_ema", "batches fetched ahead on a stream, mixup, averaged weights, checkpoints renamed and linked",
           ("--epochs", "2"), 32, 10, 2, 61_956, frozen=61_956, samples=320, evaluation_batches=4, workers=2),
    Script("ddp_mlp", "DistributedDataParallel under torchrun, sampler, all-reduce, barrier", ("--total_epochs", "2"),
           32, 32, 2, 5_633, samples=2048, processes=2),
    Script("ddp_resnet", "synchronised batch norm under torchrun, meters summed over ranks, resumed and copied files",
           ("--epochs", "2"), 32, 10, 2, 73_370, samples=640, evaluation_batches=4, workers=2, processes=2),
    Script("fsdp2_gpt", "fully_shard under torchrun, clipping of sharded gradients", ("--steps", "6"),
           4, 6, 1, 866_048, processes=2),
    Script("fsdp1_mlp", "FullyShardedDataParallel with a wrap policy under torchrun", ("--epochs", "2"),
           32, 29, 2, 301_066, samples=1797, workers=1, processes=2),
)  # fmt: skip
"""Every script; the numbers were counted in a real run on a CPU."""
