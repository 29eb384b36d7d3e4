import argparse
import os
import random
import shutil
import tempfile
import time
import warnings
from enum import Enum

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.parallel
import torch.optim
import torch.utils.data
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Subset

parser = argparse.ArgumentParser(description='ImageNet-style training')
parser.add_argument('data', metavar='DIR', nargs='?', default='imagenet')
parser.add_argument('-j', '--workers', default=2, type=int, metavar='N')
parser.add_argument('--epochs', default=90, type=int, metavar='N')
parser.add_argument('--start-epoch', default=0, type=int, metavar='N')
parser.add_argument('-b', '--batch-size', default=8, type=int, metavar='N')
parser.add_argument('--lr', '--learning-rate', default=0.1, type=float, dest='lr')
parser.add_argument('--momentum', default=0.9, type=float)
parser.add_argument('--wd', '--weight-decay', default=1e-4, type=float, dest='weight_decay')
parser.add_argument('-p', '--print-freq', default=1, type=int, metavar='N')
parser.add_argument('-e', '--evaluate', dest='evaluate', action='store_true')
parser.add_argument('--seed', default=None, type=int)
parser.add_argument('--gpu', default=None, type=int)
parser.add_argument('--dummy', action='store_true', help='use fake data')
parser.add_argument('--dummy-size', default=64, type=int)
parser.add_argument('--image-size', default=48, type=int)

best_acc1 = 0


class FakeData(torch.utils.data.Dataset):
    def __init__(self, size, image_size, num_classes, transform=None):
        self.size, self.image_size, self.num_classes, self.transform = size, image_size, num_classes, transform

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        img = torch.randn(*self.image_size, generator=g)
        target = torch.randint(0, self.num_classes, size=(1,), generator=g, dtype=torch.long)[0]
        if self.transform is not None:
            img = self.transform(img)
        return img, target.item()

    def __len__(self):
        return self.size


def conv_bn(cin, cout, stride, groups=1, k=3):
    return nn.Sequential(nn.Conv2d(cin, cout, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(cout), nn.ReLU6())


class MobileNet(nn.Module):
    def __init__(self, num_classes=1000):
        super().__init__()
        layers, cin = [conv_bn(3, 16, 2)], 16
        for cout, stride in ((24, 1), (48, 2), (48, 1), (96, 2), (96, 1)):
            layers += [conv_bn(cin, cin, stride, groups=cin), conv_bn(cin, cout, 1, k=1)]
            cin = cout
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(cin, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean([2, 3]))


def main():
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        cudnn.deterministic = True
        warnings.warn('You have chosen to seed training. This can slow down your training considerably!')
    main_worker(args.gpu, args)


def main_worker(gpu, args):
    global best_acc1
    model = MobileNet()
    if args.gpu is not None and torch.cuda.is_available():
        torch.cuda.set_device(args.gpu)
        model = model.cuda(args.gpu)
        device = torch.device('cuda:{}'.format(args.gpu))
    elif torch.cuda.is_available():
        device = torch.device('cuda')
        model = torch.nn.DataParallel(model).cuda()
    else:
        print('using CPU, this will be slow')
        device = torch.device('cpu')
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)

    if not args.dummy:
        raise SystemExit('no data folder: use --dummy')
    print("=> Dummy data is used!")
    size = (3, args.image_size, args.image_size)
    train_dataset = FakeData(args.dummy_size, size, 1000)
    val_dataset = FakeData(args.dummy_size // 4, size, 1000)
    train_sampler = None
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=(train_sampler is None),
        num_workers=args.workers, pin_memory=True, sampler=train_sampler)
    val_loader = torch.utils.data.DataLoader(
        Subset(val_dataset, range(len(val_dataset))), batch_size=args.batch_size, shuffle=False,
        num_workers=args.workers, pin_memory=True)
    if args.evaluate:
        validate(val_loader, model, criterion, args)
        return

    for epoch in range(args.start_epoch, args.epochs):
        train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model, criterion, args)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        save_checkpoint({
            'epoch': epoch + 1, 'state_dict': model.state_dict(), 'best_acc1': best_acc1,
            'optimizer': optimizer.state_dict(), 'scheduler': scheduler.state_dict()}, is_best)


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    batch_time = AverageMeter('Time', ':6.3f')
    data_time = AverageMeter('Data', ':6.3f')
    losses = AverageMeter('Loss', ':.4e')
    top1 = AverageMeter('Acc@1', ':6.2f')
    top5 = AverageMeter('Acc@5', ':6.2f')
    progress = ProgressMeter(len(train_loader), [batch_time, data_time, losses, top1, top5], prefix="Epoch: [{}]".format(epoch))
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0], images.size(0))
        top5.update(acc5[0], images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            progress.display(i + 1)


def validate(val_loader, model, criterion, args):
    top1 = AverageMeter('Acc@1', ':6.2f', Summary.AVERAGE)
    losses = AverageMeter('Loss', ':.4e', Summary.NONE)
    model.eval()
    with torch.no_grad():
        for i, (images, target) in enumerate(val_loader):
            if torch.cuda.is_available():
                images = images.cuda(args.gpu, non_blocking=True)
                target = target.cuda(args.gpu, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            acc1, _ = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item(), images.size(0))
            top1.update(acc1[0], images.size(0))
    print(' * ' + top1.summary())
    return top1.avg


def save_checkpoint(state, is_best, filename='checkpoint.pth.tar'):
    folder = tempfile.mkdtemp()
    torch.save(state, os.path.join(folder, filename))
    if is_best:
        shutil.copyfile(os.path.join(folder, filename), os.path.join(folder, 'model_best.pth.tar'))
    shutil.rmtree(folder)


class Summary(Enum):
    NONE = 0
    AVERAGE = 1


class AverageMeter(object):
    def __init__(self, name, fmt=':f', summary_type=Summary.AVERAGE):
        self.name, self.fmt, self.summary_type = name, fmt, summary_type
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ('{name} {val' + self.fmt + '} ({avg' + self.fmt + '})').format(**self.__dict__)

    def summary(self):
        return '{name} {avg:.3f}'.format(**self.__dict__) if self.summary_type is Summary.AVERAGE else ''


class ProgressMeter(object):
    def __init__(self, num_batches, meters, prefix=""):
        self.num_batches, self.meters, self.prefix = num_batches, meters, prefix

    def display(self, batch):
        print('\t'.join(['{}[{}/{}]'.format(self.prefix, batch, self.num_batches)] + [str(m) for m in self.meters]))


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / target.size(0)))
        return res


if __name__ == '__main__':
    main()
