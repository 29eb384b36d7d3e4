# ResNet on synthetic pictures with mixed precision, gradient scaling and clipping
import argparse
import io
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=5, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--images", default=96, type=int)
parser.add_argument("-j", "--workers", default=2, type=int)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--clip", default=1.0, type=float)
args = parser.parse_args()


class PictureFolder(Dataset):
    """Pictures kept as encoded bytes, decoded when they are asked for."""

    def __init__(self, n, size=40, classes=10):
        g = torch.Generator().manual_seed(0)
        self.items = []
        for i in range(n):
            buffer = io.BytesIO()
            torch.save(torch.randint(0, 256, (3, size, size), dtype=torch.uint8, generator=g), buffer)
            self.items.append((buffer.getvalue(), i % classes))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        blob, label = self.items[i]
        picture = torch.load(io.BytesIO(blob)).numpy()
        top = int(torch.randint(0, 9, ()))
        picture = picture[:, top:top + 32, 4:36]
        return torch.from_numpy(picture.copy()).float() / 255.0, label


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, widths=(16, 32, 64), classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        layers, cin = [], 16
        for i, w in enumerate(widths):
            layers += [Block(cin, w, 1 if i == 0 else 2), Block(w, w)]
            cin = w
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(cin, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        _, pred = output.topk(maxk, 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


device = "cuda" if torch.cuda.is_available() else "cpu"
train_loader = DataLoader(PictureFolder(args.images), args.batch_size, shuffle=True, num_workers=args.workers,
                          pin_memory=True, drop_last=True)
val_loader = DataLoader(PictureFolder(32), batch_size=32, num_workers=args.workers)

model = ResNet().to(device, memory_format=torch.channels_last)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
scaler = torch.amp.GradScaler(device, enabled=args.amp)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

for epoch in range(args.epochs):
    model.train()
    t0 = time.time()
    for i, (images, target) in enumerate(train_loader):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        target = target.to(device, non_blocking=True)
        with torch.autocast(device_type=device, enabled=args.amp, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            output = model(images)
            loss = criterion(output, target)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        print(f"epoch {epoch} step {i} loss {loss:.4f} grad {norm:.2f} acc@1 {acc1.item():.1f} acc@5 {acc5.item():.1f}")
    scheduler.step()
    model.eval()
    correct = total = 0
    with torch.inference_mode():
        for images, target in val_loader:
            images, target = images.to(device), target.to(device)
            predicted = model(images).argmax(1)
            correct += (predicted == target).sum().item()
            total += target.size(0)
    print("epoch %d: %.2f%% in %.1fs, lr %f" % (epoch, 100.0 * correct / total, time.time() - t0, scheduler.get_last_lr()[0]))
