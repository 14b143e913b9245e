import subprocess
import sys

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


def test_an_unknown_loss_is_one_line_with_the_nearest() -> None:
    result = CliRunner().invoke(main, ["losses", "tripelt"])
    assert result.exit_code == 1
    assert "did you mean 'triplet'?" in result.output
    assert "Traceback" not in result.output


def test_demo_beats_the_untrained_embedding() -> None:
    result = CliRunner().invoke(main, ["demo", "--seconds", "2"])
    assert result.exit_code == 0, result.output
    recall = {
        line[:24].strip(): float(line[24:].split()[0])
        for line in result.output.splitlines()
        if line[24:33].strip(" .0123456789") == "" and line[24:].split()
    }
    assert recall["contrastive"] > recall["an untrained embedding"] + 20
    assert recall["supcon"] > recall["the numbers as they are"] + 20


def test_demo_refuses_no_time() -> None:
    assert CliRunner().invoke(main, ["demo", "--seconds", "0"]).exit_code == 2


def test_unknown_attribute_of_the_package() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = nearfar.nonsense
