"""Fine-tune a small BERT classifier with the Hugging Face Trainer; weights from a config, no download."""
import argparse
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, n, length=32, seed=0):
        rng = np.random.default_rng(seed)
        self.ids = rng.integers(5, 1000, (n, length))
        self.labels = (self.ids.sum(1) % 2).astype(int)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": torch.tensor(self.ids[i]), "attention_mask": torch.ones(32, dtype=torch.long),
                "labels": int(self.labels[i])}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    return {"accuracy": float((predictions == labels).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_train_epochs", type=float, default=3)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--fp16", action="store_true")
    args = parser.parse_args()
    config = BertConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=64, num_labels=2)
    model = BertForSequenceClassification(config)
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), num_train_epochs=args.num_train_epochs,
        per_device_train_batch_size=args.per_device_train_batch_size, per_device_eval_batch_size=32,
        gradient_accumulation_steps=args.gradient_accumulation_steps, eval_strategy="epoch", save_strategy="no",
        logging_steps=5, learning_rate=5e-4, weight_decay=0.01, warmup_steps=5, report_to="none",
        fp16=args.fp16 and torch.cuda.is_available(), dataloader_num_workers=0, disable_tqdm=True)
    trainer = Trainer(model=model, args=training_args, train_dataset=Sentences(160), eval_dataset=Sentences(64, seed=1),
                      compute_metrics=compute_metrics)
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
