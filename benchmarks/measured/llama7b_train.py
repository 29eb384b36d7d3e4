"""Train a decoder of Llama-2-7B's shape on random tokens, as a plain script would."""

import torch
from llama7b import VOCABULARY, build
from torch.nn import functional as F

BATCH, LENGTH, STEPS = 1, 2048, 100


def main():
    """Run the loop."""
    torch.set_default_dtype(torch.bfloat16)
    model = build().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1)).to("cuda")
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
