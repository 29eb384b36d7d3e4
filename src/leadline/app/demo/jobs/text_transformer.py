"""Train a small character-level transformer on the descriptions of scikit-learn's bundled data sets."""

import argparse

import torch
from sklearn import datasets
from torch import nn
from torch.nn import functional


class CharTransformer(nn.Module):
    def __init__(self, characters: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        hidden = self.token(text) + self.position(places)
        return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))


def corpus() -> torch.Tensor:
    names = ("load_iris", "load_wine", "load_digits", "load_diabetes", "load_breast_cancer", "load_linnerud")
    text = "\n".join(getattr(datasets, name)().DESCR for name in names)
    vocabulary = {character: index for index, character in enumerate(sorted(set(text)))}
    return torch.tensor([vocabulary[character] for character in text])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = corpus()
    model = CharTransformer(int(text.max()) + 1, args.context, args.width, layers=4, heads=4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(text) - args.context - 1, (args.batch_size,)).tolist()
        inputs = torch.stack([text[start : start + args.context] for start in starts])
        targets = torch.stack([text[start + 1 : start + args.context + 1] for start in starts])
        return inputs.to(device), targets.to(device)

    model.train()
    for step in range(args.steps):
        inputs, targets = get_batch()
        logits = model(inputs)
        loss = functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
