import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from data import builders
from nearfar.data import Manifest, load_sketches, open_data
from nearfar.metrics import Scores, evaluate
from nearfar.report import search_examples, write_report

LOG = [{"kind": "step", "step": s, "loss": 3.0 / s, "lr": 1e-3, "active_pairs": 0.5} for s in range(1, 60)]
VOID = {"meta", "img", "wbr", "line", "circle", "path", "rect", "image", "polyline", "use"}


class Checker(HTMLParser):
    """Every tag is closed in order, every image has an alternative text, nothing is loaded from outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)
        assert {link[1:] for link in self.links if link.startswith("#")} <= set(self.ids)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)
        elif self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        assert tag != "script"
        for name in ("href", "src"):
            if name in found:
                assert found[name].startswith(("data:image/", "#"))
                self.links.append(found[name])
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "img":
            assert found["alt"]
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def drawings(rows: int = 600) -> tuple[Manifest, torch.Tensor]:
    data = load_sketches().subset(np.arange(rows)).compact()
    return data, torch.from_numpy(data.pixels.reshape(rows, -1).astype(np.float32))


def report(path, data, x, **changed):
    options = {"title": "T", "lead": "L", "scores": {}, "curves": {}, "data": data, "embeddings": x}
    return write_report(path, **{**options, **changed})


def test_a_page_with_all_sections(tmp_path):
    data, x = drawings()
    scores = {"raw": evaluate(x, data.labels, ks=(1, 2)), "half": evaluate(x[:, ::2], data.labels, ks=(1, 2))}
    path = report(
        tmp_path / "new" / "report.html",
        data,
        x,
        title="A <title> & more",
        lead="First.\n\nSecond <b>.",
        scores=scores,
        curves={"supcon": LOG, "proxy-anchor": LOG},
        settings={"loss": {"scale": 16.0, "name": "<supcon>"}},
        footer="CC BY 4.0",
        queries=5,
        neighbors=4,
    )
    text = path.read_text(encoding="utf-8")
    Checker(text)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    assert re.findall('<section id="([a-z]+)">', text) == [
        "scores",
        "examples",
        "errors",
        "training",
        "map",
        "settings",
    ]
    found = text[text.index('id="examples"') : text.index('id="errors"')]
    assert found.count('class="ask"') == 5
    assert found.count("<img ") == 5 * 5
    assert found.count('<li class="right" title') + found.count('<li class="wrong" title') == 5 * 4
    for kind in ("right", "wrong"):
        right = sum(sum(each.is_match) for each in search_examples(data, x, queries=5, neighbors=4))
        assert found.count(f'<li class="{kind}" title') == (right if kind == "right" else 20 - right) != 10
        assert found.count(f'<li class="{kind}" title') == found.count(f", {kind})")  # the frame and the alt text agree
    assert text.count("<image ") == 600
    assert "<title> & more" not in text
    assert "Second &lt;b&gt;." in text
    assert "&lt;supcon&gt;" in text
    assert "loss.scale" in text
    assert "CC BY 4.0" in text
    assert "different scales" in text
    assert "http:" not in text
    assert "https:" not in text
    assert len(text) < 1_500_000


def test_the_same_arguments_give_the_same_file(tmp_path):
    data, x = drawings(120)
    one, two, other = (report(tmp_path / str(i), data, x, seed=s).read_text() for i, s in enumerate((4, 4, 5)))
    assert one == two
    assert one != other


def test_the_seed_chooses_the_classes_of_the_map(tmp_path, monkeypatch):
    monkeypatch.setattr("nearfar.report.page.IMAGE_LIMITS", (20, 2))
    data, x = drawings(700)
    texts = [report(tmp_path / str(seed), data, x, seed=seed).read_text() for seed in range(3)]
    names = [tuple(sorted(re.findall(r'<text class="name[^>]*>([^<]*)<', text))) for text in texts]
    assert all(len(each) == 2 for each in names)
    assert len(set(names)) > 1


def test_the_best_row_is_bold_and_common_columns_are_shown(tmp_path):
    def row(**values: float) -> Scores:
        named = {name.replace("_", "@"): value for name, value in values.items()}
        return Scores(named, queries=9, dropped=0, gallery=10, distance="cosine", spread={"nmi": 0.012})

    data, x = drawings(120)
    scores = {
        "a": row(recall_1=0.9, map_r=0.123, nmi=0.5),
        "b": row(recall_1=0.1, map_r=0.2),
        "c": row(map_r=0.1, recall_1=1),
    }
    text = report(tmp_path / "r.html", data, x, scores=scores).read_text()
    table = text[text.index("<table>") : text.index("</table>")]
    assert re.findall('<th scope="col">(.*?)</th>', table) == ["Embedding", "Recall@1", "MAP@R"]
    assert re.findall('<tr class="best"><th scope="row">(.*?)</th>', table) == ["b"]
    assert ">12.3</td>" in table
    assert "9 queries, gallery of 10, cosine." in table
    single = report(tmp_path / "s.html", data, x, scores={"a": scores["a"]}).read_text()
    assert ">50.0 ± 1.2</td>" in single
    assert 'class="best"' not in single
    with pytest.raises(ValueError, match="scores must have at least one metric in common"):
        report(tmp_path / "x.html", data, x, scores={"a": row(map_r=0.1), "b": row(recall_1=0.1)})
    assert not (tmp_path / "x.html").exists()


def test_many_metrics_are_folded(tmp_path):
    data, x = drawings(120)
    text = report(tmp_path / "r.html", data, x, scores={"a": evaluate(x, data.labels, ks=(1, 2, 4, 8))}).read_text()
    assert "NDCG@8" not in text[: text.index("More metrics")]
    assert "NDCG@8" in text[text.index("More metrics") :]


def test_different_protocols_are_named(tmp_path):
    data, x = drawings(120)
    scores = {
        "a": Scores({"mrr": 0.5}, queries=4, dropped=1, gallery=5, distance="cosine"),
        "b": Scores({"mrr": 0.4}, queries=4, dropped=0, gallery=5, distance="cosine", approximation={"mrr": 0.1}),
    }
    text = report(tmp_path / "r.html", data, x, scores=scores).read_text()
    assert "a: 4 queries (1 more dropped: no positive), gallery of 5, cosine; b: 4 queries" in text
    assert "approximate" in text


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    root = builders.folder(tmp_path / "pictures", {"ant": 4, "<i>owl": 4})
    data = open_data(str(root))
    builders.write(root / "ant" / "1.jpg", b"")
    text = report(tmp_path / "r.html", data, torch.randn(8, 4), proxies=torch.randn(2, 4)).read_text()
    Checker(text)
    assert "cannot be read" in text
    assert "&lt;i&gt;owl" in text
    assert text.count("<image ") == 7
    assert text.count("proxy of") == 2
    assert str(tmp_path) not in text


def test_vectors_are_cards_with_names(tmp_path):
    x = torch.randn(20, 3)
    data = Manifest(
        labels=[0, 1] * 10,
        classes=("ant", "owl"),
        split=["test"] * 20,
        features=x.numpy(),
        paths=tuple(f"folder/some_{i}.jpg\udcff" for i in range(20)),
    )
    text = report(tmp_path / "r.html", data, x).read_text()
    Checker(text)
    assert "<img" not in text
    assert "some_<wbr>3.<wbr>jpg" in text
    assert text.count("<use ") == 20


@pytest.mark.parametrize("labels", [[0], [0, 1], [0, 0], [0, 0, 0, 1]])
def test_tiny_data(tmp_path, labels):
    x = torch.randn(len(labels), 3)
    data = Manifest(labels=labels, classes=("a", "b"), split=["test"] * len(labels), features=x.numpy())
    text = report(tmp_path / "r.html", data, x).read_text()
    Checker(text)
    assert ("no search result can be correct" in text) == (labels in ([0], [0, 1]))


def test_errors_name_the_argument(tmp_path):
    data, x = drawings(120)
    for changed, words in (
        ({"embeddings": x[:5]}, "embeddings has 5 rows but data has 120 samples"),
        ({"proxies": torch.ones(1, 7)}, r"proxies must have shape \[2, 784\]"),
        ({"queries": 0}, "queries must be at least 1, got 0"),
        ({"neighbors": -1}, "neighbors must be at least 1, got -1"),
    ):
        with pytest.raises(ValueError, match=words):
            report(tmp_path / "r.html", data, x, **changed)
    assert not list(tmp_path.iterdir())
