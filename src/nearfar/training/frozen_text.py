"""Compute the frozen layers of a text network once for each training text.

With `model.train_from`, the lower layers are frozen. Texts are not augmented, so the output of these layers for a text
is the same in every epoch. On a CPU, this output is kept in memory, and a step computes only the trained layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from tqdm import tqdm

from nearfar.config.schema import Config
from nearfar.data import BatchLoader
from nearfar.models import Embedder
from nearfar.models.backbones.text_transformer import GROUP, TextTransformer
from nearfar.models.tokenizer import PADDING
from nearfar.training.distributed import process_group

BATCH = 1024


@torch.no_grad()
def keep_frozen_states(config: Config, embedder: Embedder, loader: BatchLoader) -> None:
    """Compute the output of the frozen layers of a text network once for all training texts, and keep it in memory.

    This has no effect on a GPU, with several processes, with `compile` or `autocast`, or if nothing is frozen. The
    order of the computation does not depend on the progress of the run, so a resumed run has exactly the same values.
    """
    backbone = embedder.backbone
    is_plain = process_group.world_size() == 1 and not config.compile and config.autocast == "none"
    if not isinstance(backbone, TextTransformer) or not is_plain or next(embedder.parameters()).device.type != "cpu":
        return
    if not backbone.keep_frozen_states():
        return
    is_training = embedder.training
    embedder.eval()
    # with disable=None, tqdm shows the bar only in a terminal
    with tqdm(total=len(loader.dataset), desc="frozen layers", unit="text", leave=False, disable=None) as bar:
        for batch in loader.load_all(batch_size=BATCH):
            order = (batch.x != PADDING).sum(1).argsort(stable=True)
            for rows in torch.split(order, GROUP):
                backbone.find_frozen_states(batch.x[rows])
                bar.update(len(rows))
    embedder.train(is_training)


def forget_changed_states(embedder: Embedder, weights: Mapping[str, Tensor]) -> None:
    """Forget the output of the frozen layers if the weights that are about to be loaded change these layers."""
    backbone = embedder.backbone
    if isinstance(backbone, TextTransformer) and backbone.frozen_states is not None:
        frozen = embedder.frozen_state()
        if not all(name in weights and torch.equal(value, weights[name].to(value)) for name, value in frozen.items()):
            backbone.frozen_states.clear()
