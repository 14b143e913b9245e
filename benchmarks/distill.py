"""Does distillation pay? Train a student with half the layers of MiniLM, from the teacher's embeddings or from labels.

    python -m benchmarks.distill clinc150.csv --train-per-class 40 --test-per-class 40

The teacher is all-MiniLM-L6-v2 with its published weights. The student has the embedding layer and the first layers of
the teacher. It is trained in three ways, with the same texts, steps and learning rate: to reproduce the teacher's
embeddings ("direct", with the loss 1 - cosine), to reproduce the cosines between the texts of a batch ("relational"),
and to separate the classes of the labels ("labels", with Proxy-Anchor). The script prints Recall@1 and MAP@R on the
test classes and the CPU time of embedding a text.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearfar.data import Manifest, open_data
from nearfar.formatting import markdown_table
from nearfar.losses import ProxyAnchorLoss
from nearfar.metrics import evaluate
from nearfar.models import init_proxies_from_class_means
from nearfar.models.backbones.hub import MINILM
from nearfar.models.weights import find_weights
from nearfar.ops.geometry import unit

METRICS = ("recall@1", "map@r")
# A function of the student's embeddings, the teacher's embeddings and the labels of a batch.
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
DISTILLATION: dict[str, Objective] = {
    "direct": lambda x, target, _: (1 - (x * target).sum(1)).mean(),
    "relational": lambda x, target, _: ((x @ x.T - target @ target.T) ** 2).mean(),
}


class Encoder(nn.Module):
    """A BERT model with mean pooling."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer

    def forward(self, texts: list[str]) -> Tensor:
        """Return the unit embeddings of texts."""
        tokens = self.tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
        mask = tokens["attention_mask"][:, :, None]
        return unit((self.model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1))


def cut(teacher: Encoder, layers: int) -> Encoder:
    """Return a copy of the teacher that has only its first `layers` layers."""
    student = copy.deepcopy(teacher)
    student.model.encoder.layer = student.model.encoder.layer[:layers]  # type: ignore[union-attr, index]
    return student


@torch.no_grad()
def embed(encoder: Encoder, texts: list[str]) -> Tensor:
    """Return the embeddings of all texts. Texts of similar length are embedded together."""
    encoder.eval()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    parts = [encoder([texts[row] for row in order[start : start + 64]]) for start in range(0, len(texts), 64)]
    return torch.cat(parts)[torch.tensor(np.argsort(order))]


def fit(student: Encoder, texts: list[str], targets: Tensor, labels: Tensor, method: str, options: Any) -> None:
    """Train a student with the teacher's embeddings `targets` or with the labels."""
    parameters = [{"params": student.model.encoder.parameters(), "lr": options.lr}]  # type: ignore[union-attr]
    objective = DISTILLATION.get(method)
    if objective is None:
        loss = ProxyAnchorLoss(classes=int(labels.max()) + 1, dim=targets.shape[1])
        init_proxies_from_class_means(loss, embed(student, texts), labels, seed=options.seed)
        parameters.append({"params": loss.parameters(), "lr": 100 * options.lr})

        def objective(x: Tensor, _: Tensor, y: Tensor) -> Tensor:
            value: Tensor = loss(x, y)
            return value

    optimizer = torch.optim.AdamW(parameters, weight_decay=1e-4)
    steps = options.epochs * (len(texts) // options.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rng = np.random.default_rng(options.seed)
    student.train()
    for _ in range(options.epochs):
        for rows in np.array_split(rng.permutation(len(texts)), len(texts) // options.batch):
            chosen = torch.tensor(rows)
            value: Tensor = objective(student([texts[row] for row in rows]), targets[chosen], labels[chosen])
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def limit(manifest: Manifest, count: int) -> Manifest:
    """Return a random choice of `count` samples of each class."""
    order = np.random.default_rng(0).permutation(len(manifest))
    labels = manifest.labels[order]
    chosen = [order[labels == label][:count] for label in np.unique(labels)]
    return manifest.subset(np.sort(np.concatenate(chosen))).compact()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", help="a table of texts with a test split, such as clinc150.csv")
    parser.add_argument("--layers", type=int, default=3, help="layers of the student (default 3)")
    parser.add_argument("--train-per-class", type=int, default=40, help="training texts of each class (default 40)")
    parser.add_argument("--test-per-class", type=int, default=40, help="test texts of each class (default 40)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs (default 2)")
    parser.add_argument("--batch", type=int, default=64, help="batch size (default 64)")
    parser.add_argument("--lr", type=float, default=2e-4, help="learning rate (default 2e-4)")
    parser.add_argument("--seed", type=int, default=0, help="seed (default 0)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    from transformers import AutoModel, AutoTokenizer

    folder = str(find_weights(MINILM).parent)
    teacher = Encoder(AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    data = open_data(options.data)
    train, test = (
        limit(data.subset("train"), options.train_per_class),
        limit(data.subset("test"), options.test_per_class),
    )
    assert train.texts is not None
    assert test.texts is not None
    texts, labels = list(train.texts), torch.tensor(np.asarray(train.labels))
    targets = embed(teacher, texts)
    rows = []
    for name in ("teacher", "no training", *DISTILLATION, "labels"):
        encoder = teacher if name == "teacher" else cut(teacher, options.layers)
        torch.manual_seed(options.seed)
        if name in (*DISTILLATION, "labels"):
            fit(encoder, texts, targets, labels, name, options)
        start = time.process_time()
        found = embed(encoder, list(test.texts))
        took = 1e3 * (time.process_time() - start) / len(test.texts)
        scores = evaluate(found, test.labels, metrics=METRICS)
        title = name if name == "teacher" else f"student, {name}"
        rows.append((title, *(f"{100 * scores[metric]:.1f}" for metric in METRICS), f"{took:.1f}"))
        print(*rows[-1], flush=True)
    print(markdown_table(["network", "Recall@1", "MAP@R", "CPU ms per text"], rows))


if __name__ == "__main__":
    main()
