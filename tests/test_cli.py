import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import nearfar
from nearfar.cli import main


def test_version_and_help() -> None:
    assert nearfar.__version__ in CliRunner().invoke(main, ["--version"]).output
    assert "losses" in CliRunner().invoke(main, ["-h"]).output


def test_help_does_not_import_torch() -> None:
    code = "import sys, nearfar.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "nearfar", "--version"], check=True, capture_output=True, text=True)
    assert nearfar.__version__ in done.stdout


def test_losses_lists_all_and_shows_one() -> None:
    from nearfar.losses import names

    listed = CliRunner().invoke(main, ["losses"]).output
    assert [line.split()[0] for line in listed.splitlines()] == names()
    shown = CliRunner().invoke(main, ["losses", "triplet"]).output
    assert "margin: float = 0.2" in shown.replace("'", "")
    assert "Schroff" in shown


def test_recipes_lists_all_and_shows_one_with_its_sources() -> None:
    from nearfar.recipes import names

    listed = CliRunner().invoke(main, ["recipes"]).output
    assert [line.split()[0] for line in listed.splitlines()] == names()
    assert "# paper" in CliRunner().invoke(main, ["recipes", "dro-topk"]).output
    assert "did you mean 'dro-topk'?" in CliRunner().invoke(main, ["recipes", "dro-tpk"]).output


def test_data_shows_what_there_is_and_a_wrong_name_is_one_line(tmp_path: Path) -> None:
    assert "34,500" in CliRunner().invoke(main, ["data", "sketches"]).output
    wrong = CliRunner().invoke(main, ["data", str(tmp_path / "nowhere")])
    assert wrong.exit_code == 1
    assert wrong.output.startswith("Error: ")
    assert len(wrong.output.splitlines()) == 1
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "pictures" / name / "empty.png").touch()
    scanned = CliRunner().invoke(main, ["data", str(tmp_path / "pictures"), "--scan"])
    assert "empty.png" in scanned.output


def test_an_unknown_loss_is_one_line_with_the_nearest() -> None:
    result = CliRunner().invoke(main, ["losses", "tripelt"])
    assert result.exit_code == 1
    assert "did you mean 'triplet'?" in result.output
    assert "Traceback" not in result.output


def test_demo_refuses_no_steps() -> None:
    assert CliRunner().invoke(main, ["demo", "--steps", "0"]).exit_code == 2


def test_unknown_attribute_of_the_package() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = nearfar.nonsense
