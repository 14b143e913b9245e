"""Text models from the transformers library, such as BERT, MiniLM and the text encoder of CLIP.

A batch holds texts of different lengths. The texts are sorted by length and pass through the network in groups, each
padded only to its own longest text. Texts do not influence each other, so grouping does not change the results.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.errors import NearfarError
from nearfar.models.backbones.base import Backbone
from nearfar.models.backbones.frozen_states import FrozenStates, compute_until, replaced_outputs
from nearfar.models.backbones.model_directory import read_json
from nearfar.models.token_pooling import TOKEN_POOLINGS, create_token_pooling
from nearfar.models.tokenizer import PADDING, TextTokenizer
from nearfar.validation import check_choice

GROUP = 32  # number of texts that pass through the network together
MAX_TOKENS = 256
POOLER = "pooler"
# These models use the last position as their pooled output, but here the last position can be padding.
UNSUPPORTED = ("siglip_text_model", "siglip2_text_model")


class TextTransformer(Backbone):
    """Text model from the transformers library.

    The input is int64 [B, L], the tokens of each text padded with -1. The output is the tokens after the last layer
    (see `nearfar.models.token_pooling`), or [B, features] with the pooling "pooler".

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        pooling: The default pooling.
        max_tokens: Default for the maximum number of tokens of a text. Longer texts are cut.
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
        self.frozen_states: FrozenStates | None = None
        self._frozen_layers = 0
        self.token_dropout = 0.0
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
        """Create the backbone from a loaded model and the tokenizer and pooling settings in its directory."""
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
        """Create the backbone from a new model and the settings in `Backbone.definition`."""
        tokenizer = TextTokenizer(definition["tokenizer"])
        return cls(model, tokenizer, pooling=definition["pooling"], max_tokens=definition["max_tokens"])

    def set_input_size(self, size: int) -> None:
        """Set the maximum number of tokens of a text. Longer texts are cut."""
        most = getattr(self.model.config, "max_position_embeddings", None) or size
        if not 1 < size <= most:
            raise ValueError(f"max_tokens must be at least 2 and at most {most} for this network, got {size}")
        self.input_size = size

    def set_token_dropout(self, rate: float) -> None:
        """Set the probability with which a token is hidden in training mode.

        A hidden token has no effect on the other tokens or on the pooling, as if it were padding. The first and the
        last token of a text are never hidden, because they are special tokens in most networks. If the output of frozen
        layers is kept (see `keep_frozen_states`), tokens are hidden only from the layers above.
        """
        if not 0 <= rate < 1:
            raise ValueError(f"token_dropout must be at least 0 and below 1, got {rate}")
        self.token_dropout = rate

    def make_pooling(self, name: str | None = None, *, gem_p: float = 3.0) -> nn.Module:
        """Return the token pooling "cls", "mean" or "attention". None selects the default pooling.

        For "pooler", return an identity, because the output of the model is already pooled.
        """
        name = name or self.pooling
        check_choice("pooling", name, (*TOKEN_POOLINGS, POOLER))
        self.outputs_tokens = name != POOLER
        if self.outputs_tokens and getattr(self.model, POOLER, None) is not None:
            # remove the pooler, so that no unused weights are trained and saved
            self.model.register_module(POOLER, None)
        return create_token_pooling(name, self.features) if self.outputs_tokens else nn.Identity()

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the blocks "embeddings", "layers.0", "layers.1", ...

        Parameters outside the embeddings and the layers are in one more entry, which has the name of the last layer.
        The list is empty if the layers are not found. Unlike the blocks of an image network, these blocks cannot simply
        be applied in sequence, because the layers also take a mask.
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

    def keep_frozen_states(self) -> bool:
        """Compute the frozen layers only once for each text from now on, and keep their output in memory.

        Call `frozen_states.clear` if the weights of the frozen layers change nevertheless.

        Returns:
            False if this is not possible, because no layer is frozen, or because a layer outputs more than the states
            of the tokens.
        """
        frozen = list(takewhile(_is_frozen, (layer for name, layer in self.named_layers() if name != "embeddings")))
        frozen = [layer for layer in frozen if not isinstance(layer, nn.ModuleList)]  # other modules of the last layer
        if not frozen or not _is_frozen(self.named_layers()[0][1]):
            return False
        probe = torch.zeros((1, 2), dtype=torch.int64, device=next(self.model.parameters()).device)
        if not isinstance(compute_until(frozen[-1], lambda: self._run(probe)), Tensor):
            return False
        self.frozen_states, self._frozen_layers = FrozenStates(), len(frozen)
        return True

    def find_frozen_states(self, x: Tensor) -> Tensor:
        """Return the output [B, L, features] of the last frozen layer. Requires `keep_frozen_states`."""
        assert self.frozen_states is not None
        last = self.named_layers()[self._frozen_layers][1]  # layer 0 is the embeddings
        return self.frozen_states.find(x, PADDING, lambda part: compute_until(last, lambda: self._run(part)))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the tokens with a weight each [B, L, features + 1], or the pooled features [B, features]."""
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
        mask = self._choose_tokens(x)
        if self.frozen_states is None:
            out = self._run(x, mask)
        else:
            # the embeddings of the tokens are computed nevertheless, which takes little time
            frozen = [layer for _, layer in self.named_layers()[1 : self._frozen_layers + 1]]
            with replaced_outputs(frozen, self.find_frozen_states(x)):
                out = self._run(x, mask)
        if self.outputs_tokens:
            hidden: Tensor = out.last_hidden_state
            return torch.cat([hidden, mask[:, :, None].to(hidden.dtype)], dim=2)
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if pooled is None:
            raise NearfarError("pooling=pooler needs a model with a pooler: use pooling=mean or pooling=cls")
        return pooled

    def _choose_tokens(self, x: Tensor) -> Tensor:
        """Return the mask [B, L] of the tokens that the network sees."""
        mask = x != PADDING
        if not self.training or self.token_dropout == 0:
            return mask
        hidden = torch.rand(x.shape, device=x.device) < self.token_dropout
        is_inner = mask[:, 1:-1] & mask[:, 2:]  # neither the first nor the last token of a text
        mask[:, 1:-1] &= ~(hidden[:, 1:-1] & is_inner)
        return mask

    def _run(self, x: Tensor, mask: Tensor | None = None) -> Any:
        mask = x != PADDING if mask is None else mask
        return self.model(input_ids=x.masked_fill(x == PADDING, self._padding), attention_mask=mask.long())


def _is_frozen(module: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in module.parameters())
