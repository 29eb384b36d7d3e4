"""Small real models of the families people train, for the bench that predicts and then measures them."""

# torch is untyped to mypy here (follow_imports = skip), so its classes are Any
# mypy: disable-error-code="misc"

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's own abbreviation


def build_mlp() -> nn.Module:
    """Return a three-layer perceptron on 28×28 images."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def build_cnn() -> nn.Module:
    """Return a small convolutional classifier of 32×32 images."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(k), nn.BatchNorm2d(k)])
        self.shortcut = (
            nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))
            if stride > 1 or c != k
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, the shortcut added."""
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def build_resnet18() -> nn.Module:
    """Return ResNet-18 with 1,000 classes."""
    blocks: list[nn.Module] = []
    c = 64
    for k, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [ResidualBlock(c, k, stride), ResidualBlock(k, k, 1)]
        c = k
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def build_mobilenet() -> nn.Module:
    """Return a stack of depthwise-separable convolutions (MobileNet, Howard et al. 2017)."""

    def separable(c: int, k: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(c, c, 3, stride, 1, groups=c, bias=False), nn.BatchNorm2d(c), nn.ReLU6(),
            nn.Conv2d(c, k, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU6(),
        ]  # fmt: skip

    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    for c, k, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)):
        layers += separable(c, k, stride)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


class SequenceClassifier(nn.Module):
    """A recurrent layer over features, its last step classified."""

    def __init__(self, layer: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes of (batch, steps, features)."""
        y, _ = self.layer(x)
        return self.head(y[:, -1])


def build_lstm() -> nn.Module:
    """Return a two-layer LSTM classifier."""
    return SequenceClassifier(nn.LSTM(32, 128, 2, batch_first=True), 128, 10)


def build_gru() -> nn.Module:
    """Return a one-layer GRU classifier."""
    return SequenceClassifier(nn.GRU(32, 128, 1, batch_first=True), 128, 10)


class FusedAttention(nn.Module):
    """Multi-head self-attention by the fused kernel."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended (batch, length, width)."""
        b, length, width = x.shape
        q, k, v = self.mix(x).view(b, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, length, width))


class TransformerBlock(nn.Module):
    """Pre-norm attention and a four times wider feed-forward."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = FusedAttention(width, heads, causal=causal)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, length, width) after both halves."""
        x = x + self.attention(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class LanguageModel(nn.Module):
    """Token and position embeddings, blocks, and a head over the vocabulary or over classes."""

    def __init__(self, *, width: int, heads: int, depth: int, length: int, outputs: int, causal: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(2000, width), nn.Parameter(torch.zeros(1, length, width))
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads, causal=causal) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)
        self.causal = causal

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of each next token, or of the sequence's class."""
        y = self.norm(self.blocks(self.tokens(tokens) + self.positions[:, : tokens.shape[1]]))
        return self.head(y if self.causal else y.mean(1))


def build_encoder() -> nn.Module:
    """Return a BERT-like text classifier."""
    return LanguageModel(width=192, heads=6, depth=4, length=128, outputs=4, causal=False)


def build_decoder() -> nn.Module:
    """Return a GPT-like language model over 2,000 tokens."""
    return LanguageModel(width=256, heads=8, depth=3, length=128, outputs=2000, causal=True)


class VisionTransformer(nn.Module):
    """Patches of an image as tokens (Dosovitskiy et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 8, 8)
        self.blocks = nn.Sequential(*[TransformerBlock(192, 3, causal=False) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes of (batch, 3, side, side)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def build_vit() -> nn.Module:
    """Return a small vision transformer with patches of 8×8."""
    return VisionTransformer()


class LocalUNet(nn.Module):
    """Two levels down and up with skip connections (Ronneberger et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._double(1, 16), self._double(16, 32)])
        self.middle = self._double(32, 64)
        self.rise = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.up = nn.ModuleList([self._double(64, 32), self._double(32, 16)])
        self.head = nn.Conv2d(16, 2, 1)

    @staticmethod
    def _double(c: int, k: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(c, k, 3, padding=1), nn.BatchNorm2d(k), nn.ReLU(), nn.Conv2d(k, k, 3, padding=1), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a mask of the image's size."""
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        y = self.middle(F.max_pool2d(second, 2))
        y = self.up[0](torch.cat([self.rise[0](y), second], 1))
        return self.head(self.up[1](torch.cat([self.rise[1](y), first], 1)))


def build_unet() -> nn.Module:
    """Return a small U-Net."""
    return LocalUNet()


class MessagePassing(nn.Module):
    """Three rounds of gather, transform and sum over a fixed graph of eight edges a node."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(32, 64)
        self.rounds = nn.ModuleList([nn.Linear(128, 64) for _ in range(3)])
        self.head = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes of the (nodes, features)."""
        nodes = x.shape[0]
        target = torch.arange(nodes * 8, device=x.device) // 8
        source = (target * 7 + 13 * torch.arange(nodes * 8, device=x.device)) % nodes
        h = F.relu(self.enter(x))
        for layer in self.rounds:
            gathered = torch.zeros_like(h).index_add(0, target, h[source])
            h = F.relu(layer(torch.cat([h, gathered], 1)))
        return self.head(h)


def build_gnn() -> nn.Module:
    """Return a message-passing network."""
    return MessagePassing()


def build_autoencoder() -> nn.Module:
    """Return a convolutional autoencoder of 32×32 images."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 16, 1),
        nn.ConvTranspose2d(16, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
