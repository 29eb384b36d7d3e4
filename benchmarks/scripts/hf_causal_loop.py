"""A hand-written loop around a small GPT-2 from transformers: gradient checkpointing, AdamW, cosine schedule."""
import argparse
import math

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_scheduler


class Blocks(Dataset):
    def __init__(self, n, length):
        self.tokens = torch.randint(0, 500, (n, length), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return dict(input_ids=self.tokens[i], labels=self.tokens[i])


parser = argparse.ArgumentParser()
parser.add_argument("--num_epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--length", type=int, default=64)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=128, n_embd=64, n_layer=3, n_head=4))
model.gradient_checkpointing_enable()
model.config.use_cache = False
model.to(device)
loader = DataLoader(Blocks(64, args.length), batch_size=args.batch_size, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
total = args.num_epochs * len(loader)
schedule = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=total)
model.train()
for epoch in range(args.num_epochs):
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {outputs.loss:.3f} perplexity {math.exp(min(20.0, outputs.loss.item())):.1f}")
