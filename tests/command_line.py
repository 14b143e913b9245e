"""Call the command in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from nearfar.cli import main


def nearfar(*arguments: object) -> Result:
    """Run the command with these arguments."""
    return CliRunner().invoke(main, [str(each) for each in arguments])


def done(*arguments: object) -> str:
    """Run a command that must succeed, and return its standard output."""
    result = nearfar(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(*arguments: object) -> str:
    """Run a command that must fail with one line of error, and return that line."""
    return error_line(nearfar(*arguments))


def error_line(result: Result) -> str:
    assert result.exit_code == 1, result.output
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error"))
    return line
