"""Images under torchrun: synchronised batch norm, samplers, meters summed over ranks, resumed and best checkpoints."""
import argparse
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Noise(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return self.images

    def __getitem__(self, place):
        return torch.randn(3, 32, 32), torch.randint(0, 10, (1,)).item()


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside))
        self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


def network():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        Residual(16, 32, 2), Residual(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Meter:
    def __init__(self, name, device):
        self.name, self.device = name, device
        self.total = self.count = 0

    def add(self, value, n):
        self.total += value * n
        self.count += n

    def over_ranks(self):
        both = torch.tensor([self.total, self.count], dtype=torch.float32, device=self.device)
        dist.all_reduce(both, dist.ReduceOp.SUM)
        self.total, self.count = both.tolist()
        return self.total / self.count


def right(output, target):
    return output.argmax(1).eq(target).float().mean() * 100


def train(loader, model, loss_of, optimizer, scaler, epoch, device):
    model.train()
    losses, began = Meter("loss", device), time.time()
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.float16 if device.type == "cuda" else torch.bfloat16):
            output = model(x)
            loss = loss_of(output, y)
        losses.add(loss.item(), len(x))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % 10 == 0 and dist.get_rank() == 0:
            print(f"[{epoch}][{i}/{len(loader)}] {losses.total / losses.count:.3f} {time.time() - began:.2f} s")


@torch.no_grad()
def validate(loader, model, loss_of, device):
    model.eval()
    top1 = Meter("accuracy", device)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        top1.add(right(model(x), y).item(), len(x))
    return top1.over_ranks()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--resume", default="ddp_resnet.pth.tar")
    args = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo", init_method="env://")
    if cuda:
        torch.cuda.set_device(device)
    model = network().to(device)
    if cuda:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    schedule = StepLR(optimizer, step_size=30, gamma=0.1)
    scaler = torch.amp.GradScaler(device.type, enabled=cuda)
    first, best = 0, 0.0
    if os.path.isfile(args.resume):
        state = torch.load(args.resume, map_location=device)
        first, best = state["epoch"], state["best"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    images, held_out = Noise(640), Noise(256)
    sampler = DistributedSampler(images)
    loader = DataLoader(images, args.batch_size, shuffle=(sampler is None), num_workers=2, pin_memory=cuda,
                        sampler=sampler)
    check = DataLoader(held_out, args.batch_size, sampler=DistributedSampler(held_out, shuffle=False, drop_last=True))
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        train(loader, model, loss_of, optimizer, scaler, epoch, device)
        accuracy = validate(check, model, loss_of, device)
        schedule.step()
        better, best = accuracy > best, max(accuracy, best)
        if dist.get_rank() == 0:
            state = {"epoch": epoch + 1, "model": model.state_dict(), "best": best, "optimizer": optimizer.state_dict()}
            torch.save(state, args.resume)
            if better:
                shutil.copyfile(args.resume, "ddp_resnet_best.pth.tar")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
