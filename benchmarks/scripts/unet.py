"""Segment discs in noisy pictures with a U-Net (bf16 autocast, dice + BCE)."""
import argparse
import logging

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset, random_split


class Discs(Dataset):
    def __init__(self, n=96, size=64):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.RandomState(i)
        yy, xx = np.mgrid[:self.size, :self.size]
        cx, cy, r = rng.randint(16, self.size - 16, 2).tolist() + [rng.randint(6, 16)]
        mask = ((xx - cx) ** 2 + (yy - cy) ** 2 < r * r)
        picture = Image.fromarray((rng.rand(self.size, self.size, 3) * 120 + mask[..., None] * 100).astype(np.uint8))
        if rng.rand() < 0.5:
            picture = picture.transpose(Image.FLIP_LEFT_RIGHT)
            mask = mask[:, ::-1]
        image = torch.as_tensor(np.asarray(picture).copy()).permute(2, 0, 1).float().contiguous() / 255
        return {'image': image, 'mask': torch.as_tensor(mask.copy().astype(np.int64))}


class DoubleConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class UNet(nn.Module):
    def __init__(self, w=8, bilinear=True):
        super().__init__()
        self.inc = DoubleConv(3, w)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(w, 2 * w))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2 * w, 4 * w))
        self.up1 = nn.Upsample(scale_factor=2, mode='bilinear', align_corners=True)
        self.conv1 = DoubleConv(6 * w, 2 * w)
        self.up2 = nn.ConvTranspose2d(2 * w, w, kernel_size=2, stride=2)
        self.conv2 = DoubleConv(2 * w, w)
        self.outc = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.up1(x3)
        dy, dx = x2.size()[2] - x.size()[2], x2.size()[3] - x.size()[3]
        x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        x = self.conv1(torch.cat([x2, x], dim=1))
        x = self.conv2(torch.cat([x1, self.up2(x)], dim=1))
        return self.outc(x)


def dice_coeff(inp, target, epsilon=1e-6):
    inter = 2 * (inp * target).sum(dim=(-1, -2))
    sets_sum = inp.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    return ((inter + epsilon) / (sets_sum + epsilon)).mean()


@torch.inference_mode()
def evaluate(net, loader, device, amp):
    net.eval()
    score = 0
    with torch.autocast(device.type, enabled=amp, dtype=torch.bfloat16):
        for batch in loader:
            image, true = batch['image'].to(device), batch['mask'].to(device)
            pred = (torch.sigmoid(net(image)) > 0.5).float()
            score += dice_coeff(pred.squeeze(1), true.float())
    net.train()
    return score / max(len(loader), 1)


def train_model(model, device, epochs, batch_size, amp):
    dataset = Discs()
    n_val = int(len(dataset) * 0.25)
    train_set, val_set = random_split(dataset, [len(dataset) - n_val, n_val], generator=torch.Generator().manual_seed(0))
    loader_args = dict(batch_size=batch_size, num_workers=2, pin_memory=True)
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **loader_args)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.999, foreach=True)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, 'max', patience=5)
    criterion = nn.BCEWithLogitsLoss()
    global_step = 0
    for epoch in range(1, epochs + 1):
        model.train()
        epoch_loss = 0
        for batch in train_loader:
            images, true_masks = batch['image'], batch['mask']
            assert images.shape[1] == 3, 'loaded images have a wrong number of channels'
            images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            true_masks = true_masks.to(device=device, dtype=torch.long)
            with torch.autocast(device.type, enabled=amp, dtype=torch.bfloat16):
                pred = model(images)
                loss = criterion(pred.squeeze(1), true_masks.float())
                loss += 1 - dice_coeff(torch.sigmoid(pred.squeeze(1)), true_masks.float())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            global_step += 1
            epoch_loss += loss.item()
            if global_step % 5 == 0:
                for tag, value in model.named_parameters():
                    if not (torch.isinf(value.grad) | torch.isnan(value.grad)).any():
                        logging.debug('%s %s', tag, value.grad.norm().item())
                val_score = evaluate(model, val_loader, device, amp)
                scheduler.step(val_score)
                logging.info('Validation Dice score: {}'.format(val_score))
        logging.info(f'epoch {epoch} loss {epoch_loss / len(train_loader):.4f}')


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', '-e', type=int, default=5)
    parser.add_argument('--batch-size', '-b', dest='batch_size', type=int, default=8)
    parser.add_argument('--amp', action='store_true', default=False)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(levelname)s: %(message)s')
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    logging.info(f'Using device {device}')
    model = UNet().to(memory_format=torch.channels_last)
    model.to(device=device)
    try:
        train_model(model, device, args.epochs, args.batch_size, args.amp)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        raise
