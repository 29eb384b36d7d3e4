"""Word vectors by skip-gram with negative samples: sparse embeddings, SparseAdam, vectors written as text."""
import argparse
import collections
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def corpus(path, lines=480, words=20):
    rng = random.Random(3)
    with open(path, "w") as f:
        for _ in range(lines):
            f.write(" ".join("w%d" % min(int(rng.expovariate(0.05)), 119) for _ in range(words)) + "\n")


class Pairs(Dataset):
    """One item is a sentence: its centre words, their neighbours and words that are not."""

    def __init__(self, path, window, negatives, vocabulary):
        self.sentences = [line.split() for line in open(path)]
        counts = collections.Counter(word for sentence in self.sentences for word in sentence)
        self.ids = {word: place for place, word in enumerate(vocabulary)}
        weights = np.array([counts[word] + 1 for word in vocabulary]) ** 0.75
        self.weights, self.window, self.negatives = weights / weights.sum(), window, negatives

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, place):
        ids = [self.ids[word] for word in self.sentences[place]]
        found = []
        for i, centre in enumerate(ids):
            for context in ids[max(0, i - self.window):i] + ids[i + 1:i + 1 + self.window]:
                found.append((centre, context))
        others = np.random.choice(len(self.ids), (len(found), self.negatives), p=self.weights)
        return found, others


def collate(items):
    pairs = [pair for found, _ in items for pair in found]
    centre, context = torch.LongTensor(pairs).unbind(1)
    return centre, context, torch.from_numpy(np.concatenate([others for _, others in items]))


class SkipGram(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.centre = nn.Embedding(words, dim, sparse=True)
        self.context = nn.Embedding(words, dim, sparse=True)
        nn.init.uniform_(self.centre.weight.data, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.context.weight.data)

    def forward(self, centre, context, others):
        c = self.centre(centre)
        near = F.logsigmoid((c * self.context(context)).sum(1).clamp(-10, 10))
        far = F.logsigmoid(-torch.bmm(self.context(others), c.unsqueeze(2)).squeeze(2).clamp(-10, 10)).sum(1)
        return -(near + far).mean()

    def write(self, path, vocabulary):
        vectors = self.centre.weight.cpu().data.numpy()
        with open(path, "w") as f:
            for word, vector in zip(vocabulary, vectors):
                f.write(word + " " + " ".join("%.4f" % x for x in vector) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--dim", type=int, default=64)
    args = parser.parse_args()
    corpus("skipgram_corpus.txt")
    vocabulary = ["w%d" % i for i in range(120)]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Pairs("skipgram_corpus.txt", window=3, negatives=5, vocabulary=vocabulary)
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=0, collate_fn=collate)
    model = SkipGram(len(vocabulary), args.dim).to(device)
    for epoch in range(args.epochs):
        optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.003)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader))
        smooth = 0.0
        for step, batch in enumerate(loader):
            centre, context, others = (part.to(device) for part in batch)
            optimizer.zero_grad()
            loss = model(centre, context, others)
            loss.backward()
            optimizer.step()
            schedule.step()
            smooth = 0.9 * smooth + 0.1 * loss.item()
        print("epoch %d, loss %.3f" % (epoch, smooth))
        model.write("skipgram_vectors.txt", vocabulary)
