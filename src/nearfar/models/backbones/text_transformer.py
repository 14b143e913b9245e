"""Text models of the transformers library, such as BERT, MiniLM and the text part of CLIP.

A batch holds texts of different lengths. The texts are sorted by length and pass through the network in groups, each
padded only to its own longest text. A text does not influence the others, so the results are the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.errors import NearfarError
from nearfar.models.backbones.base import Backbone
from nearfar.models.backbones.model_directory import read_json
from nearfar.models.token_pooling import TOKEN_POOLINGS, create_token_pooling
from nearfar.models.tokenizer import PADDING, TextTokenizer
from nearfar.validation import check_choice

GROUP = 32  # texts that pass through the network together
MAX_TOKENS = 256
POOLER = "pooler"
UNSUPPORTED = ("siglip_text_model", "siglip2_text_model")  # pooled at the last position, which is padding here


class TextTransformer(Backbone):
    """Text model of the transformers library.

    The input is int64 [B, L], the tokens of each text padded with -1. The output is the tokens after the last layer
    (see `nearfar.models.token_pooling`), or [B, features] with the pooling "pooler".

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        pooling: The default pooling.
        max_tokens: Number of tokens after which a text is cut, by default.
    """

    has_map_output = False
    has_image_input = False
    has_text_input = True

    def __init__(self, model: Any, tokenizer: TextTokenizer, *, pooling: str, max_tokens: int) -> None:
        config = model.config
        if config.model_type in UNSUPPORTED:
            raise ValueError(f"text models of the type {config.model_type} are not supported: use CLIP or BERT")
        if getattr(config, "is_encoder_decoder", False):
            model = model.get_encoder()
        super().__init__(features=int(config.hidden_size), channels=1, input_size=max_tokens)
        self.mean, self.std = (), ()
        self.model: nn.Module = model
        self.tokenizer, self.pooling = tokenizer, pooling
        self.outputs_tokens = True
        self.group: int | None = GROUP
        self._padding = int(getattr(config, "pad_token_id", None) or 0)
        self.definition = {
            "kind": "text",
            "config": config.to_dict(),
            "tokenizer": tokenizer.json,
            "pooling": pooling,
            "max_tokens": max_tokens,
        }

    @classmethod
    def from_directory(cls, model: Any, folder: Path) -> TextTransformer:
        """Create the backbone of a loaded model, with the tokenizer and the pooling in its directory."""
        tokenizer = TextTokenizer.from_directory(folder)
        limit = getattr(model.config, "max_position_embeddings", None) or MAX_TOKENS
        limit = min(limit, read_json(folder, "sentence_bert_config.json").get("max_seq_length") or MAX_TOKENS)
        if model.config.model_type == "clip_text_model":
            pooling = POOLER
        else:
            is_cls = read_json(folder, "1_Pooling/config.json").get("pooling_mode_cls_token")
            pooling = "cls" if is_cls else "mean"
        return cls(model, tokenizer, pooling=pooling, max_tokens=min(limit, MAX_TOKENS))

    @classmethod
    def from_definition(cls, model: Any, definition: dict[str, Any]) -> TextTransformer:
        """Create the backbone of a new model with the settings in `Backbone.definition`."""
        tokenizer = TextTokenizer(definition["tokenizer"])
        return cls(model, tokenizer, pooling=definition["pooling"], max_tokens=definition["max_tokens"])

    def set_input_size(self, size: int) -> None:
        """Set the number of tokens after which a text is cut."""
        most = getattr(self.model.config, "max_position_embeddings", None) or size
        if not 1 < size <= most:
            raise ValueError(f"max_tokens must be at least 2 and at most {most} for this network, got {size}")
        self.input_size = size

    def make_pooling(self, name: str | None = None, *, gem_p: float = 3.0) -> nn.Module:
        """Create the pooling "cls", "mean" or "attention", or nothing for "pooler"."""
        name = name or self.pooling
        check_choice("pooling", name, (*TOKEN_POOLINGS, POOLER))
        self.outputs_tokens = name != POOLER
        if self.outputs_tokens and getattr(self.model, POOLER, None) is not None:
            self.model.register_module(POOLER, None)  # so that no weights are trained and saved without being used
        return create_token_pooling(name, self.features) if self.outputs_tokens else nn.Identity()

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the blocks "embeddings", "layers.0", "layers.1", ... with all parameters of the model.

        Unlike in networks for images, the network is not their composition, because the layers also take a mask.
        """
        count = getattr(self.model.config, "num_hidden_layers", 0)
        lists = [m for m in self.model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
        if not lists or not count:
            return []
        layers = [(f"layers.{i}", layer) for i, layer in enumerate(lists[0])]
        embeddings = getattr(self.model, "embeddings", None) or self.model.get_input_embeddings()  # type: ignore[operator]
        known = {id(p) for m in (embeddings, lists[0]) for p in m.parameters()}
        others = nn.ModuleList(
            m for m in self.model.modules() if any(id(p) not in known for p in m.parameters(recurse=False))
        )
        rest = [(layers[-1][0], others)] if len(others) else []
        return [("embeddings", embeddings), *layers, *rest]

    def forward(self, x: Tensor) -> Tensor:
        """Compute the tokens [B, L, features + 1], or the pooled features [B, features]."""
        if self.group is None or torch.compiler.is_compiling():
            return self._encode(x)
        order = (x != PADDING).sum(1).argsort(stable=True)
        parts = []
        for rows in torch.split(order, self.group):
            part = x[rows]
            length = int((part != PADDING).sum(1).max().clamp_min(1))
            encoded = self._encode(part[:, :length])
            if self.outputs_tokens:
                encoded = nn.functional.pad(encoded, (0, 0, 0, x.shape[1] - length))
            parts.append(encoded)
        return torch.cat(parts)[order.argsort()]

    def _encode(self, x: Tensor) -> Tensor:
        mask = x != PADDING
        out = self.model(input_ids=x.masked_fill(~mask, self._padding), attention_mask=mask.long())
        if self.outputs_tokens:
            hidden: Tensor = out.last_hidden_state
            return torch.cat([hidden, mask[:, :, None].to(hidden.dtype)], dim=2)
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if pooled is None:
            raise NearfarError("pooling=pooler needs a model with a pooler: use pooling=mean or pooling=cls")
        return pooled
