"""Every command's --help: its groups, its examples, and the options that all have."""

import re
import shlex

import click
import pytest

from jaxresid.cli import cli
from jaxresid.cli.help import ExplainedCommand, Group, command, grouped, option

CONTEXT = click.Context(cli, info_name="jaxresid")
COMMANDS = {name: cli.get_command(CONTEXT, name) for name in cli.list_commands(CONTEXT)}
PARAMETERS = pytest.mark.parametrize("name", COMMANDS)


@command(examples=(("what it does", "jaxresid sample --deep"),))
@option("--deep", is_flag=True, group=Group.GENERAL, help="Deep.")
@option("--own", is_flag=True, help="Own.")
@option("--hidden", is_flag=True, hidden=True)
@option("--there", group=Group.PLACE, help="There.")
def sample(deep, own, hidden, there):
    """Do nothing."""


def help_of(called):
    return called.get_help(click.Context(called, info_name="sample", max_content_width=80))


def test_groups_come_in_one_order_with_their_options():
    text = help_of(sample)
    titles = ["Examples:", "Options:", "  --own", "Place and memory:", "  --there", "General:"]
    found = [text.index(word) for word in (*titles, "  --deep", "  --help")]
    assert found == sorted(found)
    assert "hidden" not in text


def test_examples_are_shown_as_they_are_typed():
    assert "\nExamples:\n  # what it does\n  jaxresid sample --deep\n" in help_of(sample)


@PARAMETERS
def test_examples_can_be_typed(name):
    called = COMMANDS[name]
    assert isinstance(called, ExplainedCommand)
    assert called.examples
    for what, line in called.examples:
        assert max(len(what), len(line)) <= 76, line
        typed = re.search(r"jaxresid [^|>)]*", line)[0]
        program, subcommand, *argv = shlex.split(typed)
        assert (program, subcommand) == ("jaxresid", name)
        called.make_context(name, argv, resilient_parsing=True)


@PARAMETERS
def test_every_option_is_in_one_group(name):
    called = COMMANDS[name]
    groups = list(grouped(called, click.Context(called, info_name=name)))
    names = [each.opts[-1] for _, options in groups for each in options]
    assert len(names) == len(set(names))
    shown = [p for p in called.params if isinstance(p, click.Option) and not p.hidden]
    assert {p.opts[-1] for p in shown} | {"--help"} == set(names)


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in ("completion", "server")]
)
def test_every_command_has_the_options_of_the_output(name):
    options = {flag: each for each in COMMANDS[name].params for flag in each.opts}
    pairs = ("-f", "--format"), ("-o", "--output"), ("-q", "--quiet")
    assert all(options[short] is options[long] for short, long in pairs)
    assert options["--color"].type.choices == ("auto", "always", "never")
    assert "--traceback" in options


@pytest.mark.parametrize("flag", ["--on", "--margin", "--compile", "--inputs", "--policy", "--at"])
def test_an_option_of_one_name_takes_the_same(flag):
    found = [each for it in COMMANDS.values() for each in it.params if flag in each.opts]
    assert found
    assert len({(each.metavar, each.multiple, each.name) for each in found}) == 1
