"""Does distillation pay? Train a student with half the layers of MiniLM, from a teacher's embeddings or from labels.

    python -m benchmarks.distill clinc150.csv --train-per-class 25 --test-per-class 40 --seeds 2

There are two teachers: all-MiniLM-L6-v2 with its published weights, and the same network after training with the labels
(Proxy-Anchor). The student has the embedding layer and the first layers of the published network. It is trained with
the same texts, steps and learning rate in each of these ways: with the labels, to reproduce the embeddings of a teacher
("direct", 1 - cosine), and to reproduce the cosines between the texts of a batch ("relational"). The script prints
Recall@1 and MAP@R on the test classes and the CPU time of embedding a text. Distillation pays if a student that learns
from a teacher is better than the student that learns from the labels.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
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
LABELS = "labels"
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


def load_encoder() -> Encoder:
    """Return all-MiniLM-L6-v2 with its published weights."""
    from transformers import AutoModel, AutoTokenizer

    folder = str(find_weights(MINILM).parent)
    return Encoder(AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))


def cut(encoder: Encoder, layers: int) -> Encoder:
    """Return a copy of an encoder that has only its first `layers` layers."""
    student = copy.deepcopy(encoder)
    student.model.encoder.layer = student.model.encoder.layer[:layers]  # type: ignore[union-attr, index]
    return student


@torch.no_grad()
def embed(encoder: Encoder, texts: list[str]) -> Tensor:
    """Return the embeddings of all texts. Texts of similar length are embedded together."""
    encoder.eval()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    parts = [encoder([texts[row] for row in order[start : start + 64]]) for start in range(0, len(texts), 64)]
    return torch.cat(parts)[torch.tensor(np.argsort(order))]


def milliseconds(encoder: Encoder, texts: list[str], *, rounds: int = 3) -> float:
    """Return the CPU time of embedding a text, the best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        embed(encoder, texts)
        best = min(best, time.process_time() - start)
    return 1e3 * best / len(texts)


def fit(
    encoder: Encoder, texts: list[str], labels: Tensor, method: str, options: Any, *, seed: int, targets: Tensor
) -> None:
    """Train an encoder with the labels, or with the embeddings `targets` of a teacher."""
    parameters = [{"params": encoder.model.encoder.parameters(), "lr": options.lr}]  # type: ignore[union-attr]
    objective = DISTILLATION.get(method)
    torch.manual_seed(seed)
    if objective is None:
        loss = ProxyAnchorLoss(classes=int(labels.max()) + 1, dim=targets.shape[1])
        init_proxies_from_class_means(loss, embed(encoder, texts), labels, seed=seed)
        parameters.append({"params": loss.parameters(), "lr": 100 * options.lr})

        def objective(x: Tensor, _: Tensor, y: Tensor) -> Tensor:
            value: Tensor = loss(x, y)
            return value

    optimizer = torch.optim.AdamW(parameters, weight_decay=1e-4)
    steps = options.epochs * (len(texts) // options.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rng = np.random.default_rng(seed)
    encoder.train()
    for _ in range(options.epochs):
        for rows in np.array_split(rng.permutation(len(texts)), len(texts) // options.batch):
            chosen = torch.tensor(rows)
            value: Tensor = objective(encoder([texts[row] for row in rows]), targets[chosen], labels[chosen])
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def train_all(published: Encoder, train: Manifest, options: Any, seed: int) -> Iterator[tuple[str, Encoder]]:
    """Yield the name and the network of each row of the table."""
    assert train.texts is not None
    texts, labels = list(train.texts), torch.tensor(np.asarray(train.labels))
    targets = {"published": embed(published, texts)}
    yield "teacher, published weights", published
    teacher = copy.deepcopy(published)
    fit(teacher, texts, labels, LABELS, options, seed=seed, targets=targets["published"])
    targets["trained"] = embed(teacher, texts)
    yield "teacher, trained with labels", teacher
    yield "student, not trained", cut(published, options.layers)
    student = cut(published, options.layers)
    fit(student, texts, labels, LABELS, options, seed=seed, targets=targets["published"])
    yield "student, trained with labels", student
    for of, target in targets.items():
        for method in DISTILLATION:
            student = cut(published, options.layers)
            fit(student, texts, labels, method, options, seed=seed, targets=target)
            yield f"student, {method} from the {of} teacher", student


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
    parser.add_argument("--train-per-class", type=int, default=25, help="training texts of each class (default 25)")
    parser.add_argument("--test-per-class", type=int, default=40, help="test texts of each class (default 40)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs (default 2)")
    parser.add_argument("--batch", type=int, default=64, help="batch size (default 64)")
    parser.add_argument("--lr", type=float, default=2e-4, help="learning rate (default 2e-4)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default 1)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    published = load_encoder()
    data = open_data(options.data)
    train = limit(data.subset("train"), options.train_per_class)
    test = limit(data.subset("test"), options.test_per_class)
    assert test.texts is not None
    times = [milliseconds(each, list(test.texts)[:256]) for each in (published, cut(published, options.layers))]
    rows: dict[str, list[list[float]]] = {}
    for seed in range(options.seeds):
        for name, encoder in train_all(published, train, options, seed):
            scores = evaluate(embed(encoder, list(test.texts)), test.labels, metrics=METRICS)
            rows.setdefault(name, []).append([100 * scores[metric] for metric in METRICS])
            print(f"seed {seed}, {name}:", *(f"{value:.2f}" for value in rows[name][-1]), flush=True)
    cells = [
        (
            name,
            *(", ".join(f"{value:.1f}" for value in column) for column in zip(*values, strict=True)),
            f"{times[name.startswith('student')]:.1f}",
        )
        for name, values in rows.items()
    ]
    print(markdown_table(["network", "Recall@1 of each seed", "MAP@R of each seed", "CPU ms per text"], cells))


if __name__ == "__main__":
    main()
