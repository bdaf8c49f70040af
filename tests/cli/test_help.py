"""`-h` is one screen of what people use, `--help` is everything under headings; both come from the declarations."""

import shlex

import pytest

from gpubench.cli.declaration import HEADINGS
from gpubench.cli.options import commands
from tests.held import hold

LINES, COLUMNS = 24, 80


@pytest.mark.parametrize("command", ["", *commands()])
def test_the_short_help_is_one_screen_with_three_examples(in_process, command):
    ended = in_process(*command.split(), "-h")
    lines = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(lines) <= LINES, len(lines)
    assert max(map(len, lines)) <= COLUMNS
    assert len([line for line in lines[lines.index("Examples:") + 1 :] if line.startswith("  ")]) == 3
    assert "--help" in lines[-1]


@pytest.mark.parametrize("command", commands())
def test_the_whole_help_has_every_option_once_and_under_its_heading(in_process, command):
    text = in_process(command, "--help").stdout
    assert "<int" not in text
    blocks = text.split("\n\n")
    under = {block.partition(":\n")[0]: block for block in blocks}
    for declared in commands()[command].declared.values():
        if declared.heading is not None:
            lines = [(head, line) for head in HEADINGS for line in under.get(head, "").splitlines()]
            heads = {head for head, line in lines if f"--{declared.key}" in line[:33].split()}
            assert heads == {declared.heading}, declared.key


@pytest.mark.parametrize("command", commands())
def test_the_examples_are_command_lines_that_gpubench_takes(in_process, command):
    for line in commands()[command].examples:
        _, _, words = line.rpartition("gpubench ")
        words, _, _ = words.partition(" >")
        words, dashes, rest = words.removesuffix(')"').partition(" -- ")
        ended = in_process(*shlex.split(f"{words} --show-config {dashes}{rest}"))
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("command", commands())
def test_an_option_without_a_default_is_needed_and_no_other_is_known(command):
    kind = commands()[command]
    hold(
        "".join(
            f"{name}: {found._replace(help='', listing=str, type=str)[1:]}\n"
            for name, found in kind.declared.items()
        )
    )
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
