"""Training scripts whose loading, evaluation and libraries are easily mistaken."""

DATA = """
import sys, tempfile, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
training, held_out = TensorDataset(torch.rand(160, 4)), TensorDataset(torch.rand(40, 4))
"""
TRAINER = (
    DATA
    + """
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x=None, labels=None):
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

def rows(count):
    return [{"x": torch.rand(4), "labels": number % 2} for number in range(count)]

strategy, evaluation_set = sys.argv[1], rows(40) if sys.argv[2] == "set" else None
arguments = TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=8, per_device_eval_batch_size=8, num_train_epochs=2,
    report_to="none", save_strategy="no", disable_tqdm=True, eval_strategy=strategy, eval_steps=5)
Trainer(Net(), arguments, train_dataset=rows(160), eval_dataset=evaluation_set).train()
"""
)
ACCELERATED = (
    DATA
    + """
from accelerate import Accelerator
accelerator = Accelerator()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(training, 8, shuffle=True))
for epoch in range(3):
    for (x,) in batches:
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""
)
LOOP = (
    DATA
    + """
model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def evaluate(loader):
    with torch.no_grad():
        for (x,) in loader:
            model(x.cuda())
{before}
for epoch in range(3):
    for (x,) in DataLoader(training, 8, shuffle=True):
        model(x.cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    {after}
"""
)
TWO_LOSSES = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for x in DataLoader(torch.rand(80, 4), 8):
        model(x.cuda()).square().mean().backward()
        model(x.cuda()).abs().mean().backward()
        optimizer.step()
"""
LIBRARY_LOOP = """
def fit(model, optimizer, loader):
    for epoch in range(7):
        for x in loader:
            for _ in range(2):
                model(x.cuda()).square().mean().backward()
            optimizer.step()
"""
LIBRARY_SCRIPT = """
import torch, trainlib
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1).cuda()
trainlib.fit(model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(torch.rand(80, 4), 8))
"""
WAITING = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Stored(Dataset):
    def __len__(self):
        return 8000
    def __getitem__(self, place):
        time.sleep(0.005)  # as storage would
        return torch.rand(4)

model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for x in DataLoader(Stored(), 8):
        model(x.cuda()).square().mean().backward()
        optimizer.step()
"""
