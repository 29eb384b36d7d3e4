"""Classify sequences of different length with a bidirectional GRU over packed sequences."""
import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None


class Reviews(Dataset):
    def __init__(self, n, vocab=500, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.texts = [torch.randint(1, vocab, (int(torch.randint(5, 40, (1,), generator=g)),), generator=g).tolist() for _ in range(n)]
        self.labels = [int(sum(t) % 2) for t in self.texts]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, idx):
        return self.texts[idx], self.labels[idx]


def collate(batch):
    texts, labels = zip(*batch)
    lengths = torch.tensor([len(t) for t in texts])
    padded = pad_sequence([torch.tensor(t) for t in texts], batch_first=True)
    return padded, lengths, torch.tensor(labels, dtype=torch.float32)


class Classifier(nn.Module):
    def __init__(self, vocab=500, dim=48, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(2 * hidden, 1)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, h = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        mask = (x != 0).unsqueeze(-1)
        pooled = (out * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.head(pooled).squeeze(-1)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(Reviews(640), batch_size=args.batch_size, shuffle=True, collate_fn=collate, num_workers=2)
    valid = DataLoader(Reviews(96, seed=1), batch_size=args.batch_size, collate_fn=collate)
    model = Classifier().to(device)
    loss_fn = nn.BCEWithLogitsLoss()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(args.num_epochs):
        bar = tqdm(loader, desc=f"epoch {epoch}", disable=not args.progress) if tqdm else loader
        model.train()
        running = 0.0
        for x, lengths, y in bar:
            x, y = x.to(device), y.to(device)
            opt.zero_grad()
            logits = model(x, lengths)
            loss = loss_fn(logits, y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            running = 0.9 * running + 0.1 * loss.item()
            if tqdm:
                bar.set_postfix(loss=f"{loss:.3f}", avg="%.3f" % running)
        model.eval()
        hits = 0
        with torch.no_grad():
            for x, lengths, y in valid:
                hits += ((model(x.to(device), lengths) > 0) == y.to(device).bool()).sum()
        print(f"epoch {epoch}: accuracy {float(hits) / len(valid.dataset):.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--num-epochs", type=int, default=4)
    p.add_argument("--progress", action="store_true")
    main(p.parse_args())
