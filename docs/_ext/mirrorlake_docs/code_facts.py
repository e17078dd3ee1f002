"""Reference pages as Markdown, generated from the code: commands, parameters, errors, promises.

The texts are the program's help, the comments of the notebooks' parameters, docstrings, and
`tests/promises.yaml` with the tests that are marked with a promise.
"""

from __future__ import annotations

import ast
import inspect
import re
import tokenize
from collections.abc import Iterator
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from mirrorlake import errors
from mirrorlake.storage.paths import NOTEBOOKS, PARAMETERS, PROJECT
from mirrorlake_runs.notebook_files import nbformat

_PROMISE = "pytest.mark.promise"
_STATUS = {"UsageError": 2, "InvalidNameError": 2, "AlreadyRunningError": 3}


def commands_page(program: Any) -> str:
    """Return the page with the help of every command and verb.

    Args:
        program: the Click group of all commands.
    """
    parts = ["# Command help", "", "The help text of each command.", ""]
    for name, command in _commands(program):
        parts += [f"## `{name}`", "", *_help_of(name, command), ""]
    return "\n".join(parts)


def guardrails_page() -> str:
    """Return the page with the limits of each capacity, which `analyze` compares tables with."""
    found = yaml.safe_load((files("mirrorlake.layout") / "guardrails.yaml").read_text("utf-8"))
    lines = [
        "# Guardrails by capacity",
        "",
        "`analyze --sku F64` compares a table with these limits of Direct Lake. The rows of a model"
        " beyond its memory are paged; this is slower, but no guardrail.",
        "",
        "| capacities | Parquet files per table | row groups per table | rows per table"
        " | GB of a model on disk | GB of memory |",
        "|---|---|---|---|---|---|",
    ]
    for one in found["classes"]:
        names = ("files", "row_groups", "rows", "model_gb", "memory_gb")
        values = ["no limit" if one[name] is None else f"{one[name]:,}" for name in names]
        lines.append(f"| {' | '.join([', '.join(one['skus']), *values])} |")
    return "\n".join([*lines, "", f"Source: {found['source']}, {found['date']}."])


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name in sorted(group.commands):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def _help_of(name: str, command: Any) -> list[str]:
    context = command.context_class(command, info_name=f"./mirrorlake {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        "```sh",
        f"./mirrorlake {name} {usage}",
        "```",
        "",
        inspect.cleandoc(command.help or ""),
    ]
    records = (parameter.get_help_record(context) for parameter in command.params)
    rows = [f"| `{_cell(what)}` | {_cell(text)} |" for what, text in filter(None, records)]
    if rows:
        lines += ["", "| argument or option | description |", "|---|---|", *rows]
    return lines


def parameters_page() -> str:
    """Return the page with the parameters of every notebook: type, default and description."""
    parts = [
        *("# Notebook parameters", ""),
        "Set a parameter with `./mirrorlake run NAME -p name=value`. Each notebook has a file with"
        " the same names in `parameters/`. Plans are in `parameters/plans/`.",
        "",
    ]
    for path in [*sorted(NOTEBOOKS.glob("*.ipynb")), *sorted(NOTEBOOKS.glob("learn/*.ipynb"))]:
        name = path.relative_to(NOTEBOOKS).with_suffix("").as_posix()
        rows = _parameters_of(path)
        parts += [f"## `{name}`", "", f"[The notebook](../notebooks/{name}.ipynb)", ""]
        parts += ["| parameter | type | default | description |", "|---|---|---|---|", *rows, ""]
    parts += ["## Plans", ""]
    for path in sorted((PARAMETERS / "plans").glob("*.yaml")):
        text = path.read_text(encoding="utf-8").rstrip()
        parts += [f"### `{path.stem}`", "", "```yaml", text, "```", ""]
    return "\n".join(parts)


def _parameters_of(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells  # type: ignore[no-untyped-call]
    (source,) = [c.source for c in cells if "parameters" in c.metadata.get("tags", [])]
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    rows = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            name, kind, value = (ast.unparse(n) for n in (node.target, node.annotation, node.value))
            comment = comments.get(node.end_lineno or node.lineno, "")
            rows.append(f"| `{name}` | {_cell(kind)} | `{_cell(value)}` | {_cell(comment)} |")
    return rows


def errors_page() -> str:
    """Return the page with every error class: meaning, base class and exit status of a command."""
    rows = []
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.MirrorlakeError):
            text = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
            status = next((_STATUS[k.__name__] for k in kind.__mro__ if k.__name__ in _STATUS), 1)
            rows.append(f"| `{name}` | `{kind.__mro__[1].__name__}` | {status} | {_cell(text)} |")
    return "\n".join(
        [
            *("# Errors", ""),
            "mirrorlake raises these errors, from `mirrorlake.errors`. A message has the problem"
            " and its place (file, row, column), followed by `Hint:` and the fix. A command that"
            " fails with the error ends with the exit status. Their texts are listed as"
            " [messages](messages.md). The findings of `lint` have [rules](../docs/lint.md)"
            " instead.",
            *("", "| error | base class | exit status | meaning |", "|---|---|---|---|"),
            *rows,
            "",
        ]
    )


def promises_page() -> str:
    """Return the page with every promise and the tests that verify it."""
    known = yaml.safe_load((PROJECT / "tests" / "promises.yaml").read_text(encoding="utf-8"))
    held: dict[str, list[str]] = {number: [] for number in known}
    for path in sorted((PROJECT / "tests").rglob("test_*.py")):
        for number, test in _marked(path):
            held.setdefault(number, []).append(test)
    rows = []
    for number, text in known.items():
        tests = "<br>".join(f"`{test}`" for test in held[number])
        rows.append(f"| {number} | {_cell(str(text))} | {tests} |")
    return "\n".join(
        [
            *("# Promises", ""),
            "Each promise has tests that verify it. `./mirrorlake test` ends with the number of"
            " promises that the run has verified.",
            *("", ":::{container} promises", "| | promise | verified by |", "|---|---|---|"),
            *rows,
            *(":::", ""),
        ]
    )


def _marked(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the promises that mark the tests of a file, each with its test."""
    place = path.relative_to(PROJECT / "tests").as_posix()
    text = path.read_text(encoding="utf-8")
    if _PROMISE not in text:  # skips most files, because parsing is slow
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == _PROMISE:
                for argument in mark.args:
                    yield str(ast.literal_eval(argument)), f"{place}::{node.name}"


def _cell(text: str) -> str:
    """Return a text that fits into a cell of a Markdown table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()
