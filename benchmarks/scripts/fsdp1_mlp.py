"""Classic FSDP wrapping of a deep MLP; start with torchrun --nproc_per_node=2 fsdp1_mlp.py."""
import argparse
import functools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def train(args, model, rank, device, loader, optimizer, epoch, sampler=None):
    model.train()
    ddp_loss = torch.zeros(2).to(device)
    if sampler:
        sampler.set_epoch(epoch)
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target, reduction='sum')
        loss.backward()
        optimizer.step()
        ddp_loss[0] += loss.item()
        ddp_loss[1] += len(data)
    dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
    if rank == 0:
        print('Train Epoch: {} \tLoss: {:.6f}'.format(epoch, ddp_loss[0] / ddp_loss[1]))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch-size', type=int, default=32)
    parser.add_argument('--epochs', type=int, default=5)
    args = parser.parse_args()
    setup()
    rank, world_size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    cuda = torch.cuda.is_available()
    device = torch.device('cuda', int(os.environ['LOCAL_RANK'])) if cuda else torch.device('cpu')
    if cuda:
        torch.cuda.set_device(device)
    X, y = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(y))
    sampler = DistributedSampler(dataset, rank=rank, num_replicas=world_size, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=1, pin_memory=cuda)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=20000)
    model = FSDP(model, auto_wrap_policy=policy, **({'device_id': device} if cuda else {'device_id': device}))
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    for epoch in range(1, args.epochs + 1):
        train(args, model, rank, device, loader, optimizer, epoch, sampler=sampler)
    dist.barrier()
    dist.destroy_process_group()
