"""`-h` is one screen of what people use, `--help` is everything under headings; both come from the declarations."""

import inspect
import shlex
from importlib import import_module

import pytest

from gpubench.cli.declaration import HEADINGS
from gpubench.cli.options import commands

LINES, COLUMNS = 24, 80


@pytest.fixture
def gpubench(in_process):
    return in_process


# `run` and `noise` have more options than fit.
LONG = ("run", "noise")


@pytest.mark.parametrize("command", ["", *commands()])
def test_the_short_help_is_one_screen_with_three_examples(gpubench, command):
    ended = gpubench(*command.split(), "-h")
    lines = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(lines) <= LINES, len(lines)
    assert max(map(len, lines)) <= COLUMNS
    assert len([line for line in lines[lines.index("Examples:") + 1 :] if line.startswith("  ")]) == 3
    assert "--help" in lines[-1]


@pytest.mark.parametrize("command", LONG)
def test_the_short_help_of_a_long_command_has_the_options_that_people_use(gpubench, command):
    shown = gpubench(command, "-h").stdout
    for option in ("--ops", "--sizes", "--mode", "--quick", "--budget", "--output"):
        assert f"{option} " in shown, option
    assert "1k is 1024" in shown
    assert "--break-even-timings" not in shown


@pytest.mark.parametrize("command", commands())
def test_the_whole_help_has_every_option_once_and_under_its_heading(gpubench, command):
    text = gpubench(command, "--help").stdout
    assert "<int" not in text
    blocks = text.split("\n\n")
    under = {block.partition(":\n")[0]: block for block in blocks}
    for declared in commands()[command].declared.values():
        if declared.heading is not None:
            lines = [(head, line) for head in HEADINGS for line in under.get(head, "").splitlines()]
            heads = {head for head, line in lines if f"--{declared.key}" in line[:33].split()}
            assert heads == {declared.heading}, declared.key


@pytest.mark.parametrize("command", commands())
def test_the_examples_are_command_lines_that_gpubench_takes(gpubench, command):
    for line in commands()[command].examples:
        _, _, words = line.rpartition("gpubench ")
        words, _, _ = words.partition(" >")
        words, dashes, rest = words.removesuffix(')"').partition(" -- ")
        ended = gpubench(*shlex.split(f"{words} --show-config {dashes}{rest}"))
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("command", commands())
def test_an_option_without_a_default_is_needed_and_no_other_is_known(command):
    kind = commands()[command]
    needed = {name: "x" for name, found in kind.declared.items() if found.required}
    options = kind(**needed)
    rest = {name: found.default for name, found in kind.declared.items() if name not in needed}
    assert {name: getattr(options, name) for name in rest} == rest
    with pytest.raises(TypeError):
        kind(**needed, no_such_option=1)
    for name in needed:
        with pytest.raises(TypeError):
            kind(**{other: "x" for other in needed if other != name})
    with pytest.raises(AttributeError):
        options.quiet = True  # type: ignore[misc, attr-defined]


@pytest.mark.parametrize("command", commands())
def test_a_command_is_handed_its_options_as_one_value(command):
    kind = commands()[command]
    function = getattr(import_module(kind.module or f"gpubench.cli.{command}"), command)
    parameters = inspect.signature(function, eval_str=True).parameters
    assert parameters.keys() - {"ctx"} == {"options"}
    assert issubclass(kind, parameters["options"].annotation)


@pytest.mark.parametrize("columns", [1, 20, 39, 51, 66])
@pytest.mark.parametrize("command", ["", "run", "compare", "advise"])
def test_help_is_as_wide_as_the_terminal(gpubench, command, columns):
    """Below 20 columns lines have 20. An example that is broken can be pasted as it stands."""
    for flag in ("-h", "--help"):
        shown = gpubench(*command.split(), flag, env={"COLUMNS": str(columns)})
        assert (shown.returncode, shown.stderr) == (0, "")
        assert max(map(len, shown.stdout.splitlines())) <= max(columns, 20)
    wide, narrow = (
        gpubench(*command.split(), "-h", env={"COLUMNS": str(width)}).stdout.partition("Examples:")[2].split()
        for width in (80, columns)
    )
    assert wide == [word for word in narrow if word != "\\"]
