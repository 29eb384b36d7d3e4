"""The help of every command shows each option and its default, and is fast."""

import subprocess
import sys
import tomllib

import click
import msgspec
import pytest

from leadline.app.workloads.options import WorkloadOptions
from leadline.interfaces.cli.commands import COMMANDS, load_command
from leadline.interfaces.cli.main import HELP_FILE, main
from leadline.interfaces.cli.workload_options import FILE_ONLY


def commands():
    """Yield every command with the words that call it."""
    for verb in COMMANDS:
        whole = load_command(verb)
        for name, command in getattr(whole, "commands", {"": whole}).items():
            yield (f"{verb} {name}".strip(), command)


EVERY = dict(commands())
TAKES_WORKLOAD = ("estimate", "recommend", "systems check")


@pytest.mark.parametrize("words", EVERY)
def test_every_option_has_a_help_text_and_a_default(words):
    context = click.Context(EVERY[words])
    for option in EVERY[words].params:
        assert option.get_help_record(context)[1], option.name
        if option.param_type_name == "argument":
            continue
        assert option.show_default or option.is_flag, f"{option.name} shows no default"


@pytest.mark.parametrize("words", EVERY)
def test_help_shows_every_option_with_its_default_and_no_python_type(words, capsys):
    assert main([*words.split(), "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for option in EVERY[words].params:
        if option.param_type_name == "option":
            assert max(option.opts, key=len) in printed
            if isinstance(option.show_default, str):
                assert f"[default: ({option.show_default})" in printed
    assert not [ugly for ugly in ("<str>", "<int>", "<float>", "list[", "``", "None") if ugly in printed]
    assert f"Usage: leadline {words} [OPTIONS]" in printed


@pytest.mark.parametrize("words", TAKES_WORKLOAD)
def test_workload_options_are_those_of_the_shared_list(words):
    listed = [field.name for field in msgspec.structs.fields(WorkloadOptions) if field.name not in FILE_ONLY]
    names = [option.name for option in EVERY[words].params]
    assert listed == [name for name in names if name in listed]


def test_help_groups_the_options_of_a_workload(capsys):
    main(["estimate", "--help"])
    printed = capsys.readouterr().out
    headings = ["Arguments:", "Model:", "Length of the job:", "Data:", "Options:", "Examples:"]
    assert headings == [line.strip() for line in printed.splitlines() if line.strip() in headings]


@pytest.mark.parametrize("words", [["-h"], ["help"], []])
def test_the_first_help_lists_every_command(words, capsys):
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in COMMANDS)


def test_help_of_a_command_has_two_spellings(capsys):
    main(["submit", "-h"])
    first = capsys.readouterr().out
    main(["help", "submit"])
    assert first == capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], ("click", "msgspec", "difflib", "inspect", "typing")),
        (["estimate", "--help"], ("torch", "numpy", "sqlite3", "asyncio", "sphinx", "onnx")),
        (["submit", "--help"], ("torch", "numpy", "asyncio", "sphinx", "onnx")),
    ],
)
def test_start_up_imports_only_what_is_needed(words, heavy):
    program = (
        "import sys; from leadline.interfaces.cli.main import main; main(sys.argv[1:]); "
        f"sys.exit(' '.join(name for name in {heavy!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_no_help_imports_numpy_and_jobs_imports_no_estimator():
    program = (
        "import sys\n"
        "from leadline.interfaces.cli.commands import COMMANDS\n"
        "from leadline.interfaces.cli.main import main\n"
        "for name in ('jobs', *(name for name in COMMANDS if name not in ('bench', 'jobs'))):\n"
        "    main([name, '--help'])\n"
        "    heavy = [m for m in sys.modules if m in ('numpy', 'scipy', 'torch', 'sklearn', 'matplotlib')]\n"
        "    heavy += [m for m in sys.modules if name == 'jobs' and m.startswith('leadline.estimators')]\n"
        "    if heavy: sys.exit(f'{name} imports {heavy}')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_the_examples_of_a_command_show_it():
    examples = tomllib.loads(HELP_FILE.with_name("examples.toml").read_text(encoding="utf-8"))
    assert not [
        name for name, lines in examples.items() if name.split()[0] not in COMMANDS or f"leadline {name}" not in lines
    ]
