"""The page with every message: of errors by class, and of log records, read from the source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from mirrorlake import errors
from mirrorlake.storage.paths import PROJECT

LOG = "Log records"
_LIB = PROJECT / "lib"
_PASSED_ON = re.compile(r"\{(message|hint|reason)\}|^\{text\}$")  # the text of another error
_LOGGED = {"_log.info", "_log.warning", "_log.error", "_log.exception", "warn"}


def messages_page() -> str:
    """Return the page with the messages of each error class and of log records, by module."""
    found: dict[str, dict[str, None]] = defaultdict(dict)  # each row once, in order
    for kind, module, *texts in messages():
        message, hint = (re.sub(r"([|*<])", r"\\\1", text) for text in texts)
        found[kind][f"| {module} | {message} | {hint} |"] = None
    parts = [
        *("# Messages", ""),
        "These are the messages of all [errors](errors.md) and log records. Braces contain a value,"
        " `…` is a text that depends on the case, and ` / ` separates alternatives. The findings of"
        " `lint` are on the page of its [rules](../docs/lint.md).",
        "",
    ]
    for kind in sorted(found, key=lambda kind: (kind == LOG, kind)):
        parts += [f"## {kind}", "", "| module | message | hint |", "|---|---|---|"]
        parts += [*found[kind], ""]
    return "\n".join(parts)


def messages() -> Iterator[tuple[str, str, str, str]]:
    """Yield the error class (or `LOG`), module, message and hint of each message, by module."""
    modules = {
        path.relative_to(_LIB).with_suffix("").as_posix(): [
            *ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        ]
        for path in sorted(_LIB.rglob("*.py"))
    }
    classes = _kinds(chain.from_iterable(modules.values()))
    functions = _returning(chain.from_iterable(modules.values()), classes)
    public = {name: kind for name, kind in functions.items() if not name.startswith("_")}
    shared = {
        name: value
        for node in chain.from_iterable(modules.values())
        if isinstance(node, ast.Assign)
        for target, value in [(node.targets[0], node.value)]
        if (name := getattr(target, "id", "")).isupper() and not name.startswith("_")
    }
    for module, nodes in modules.items():
        kinds = classes | public | _returning(nodes, classes)
        calls = [(kind, call) for call in _calls(nodes) if (kind := kinds.get(_called(call)))]
        for node in nodes:
            if isinstance(node, ast.ClassDef) and node.name in kinds:
                inner = _calls(ast.walk(node))
                calls += [(node.name, call) for call in inner if _called(call) == "__init__"]
        names = _Names(nodes, shared)
        for kind, call in sorted(calls, key=lambda found: found[1].lineno):
            hint = "".join(names.text(k.value) for k in call.keywords if k.arg == "hint")
            texts = [names.text(argument) for argument in call.args]
            message = next(filter(_has_words, texts), texts[0] if texts and hint else "")
            # A function that returns an error may take a part of its message.
            if message and (kind in (_called(call), LOG) or hint or message.endswith(".")):
                message = re.sub(r"%(s|d|\.0f)", "…", message)
                shown, fix = (_PASSED_ON.sub("…", text) for text in (message, hint))
                if _has_words(shown) or _has_words(fix):  # else all of it is in another row
                    yield kind, module, shown, fix


def _calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    return (node for node in nodes if isinstance(node, ast.Call))


def _called(call: ast.Call) -> str:
    """Return the name of the called function or class; `_log.warning` for methods of a logger."""
    name = getattr(call.func, "attr", "") or getattr(call.func, "id", "")
    logger = getattr(getattr(call.func, "value", None), "id", "")
    return f"_log.{name}" if logger == "_log" else name


def _kinds(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the error class by the name of each error class, and `LOG` by each logging call."""
    found = {name: name for name in vars(errors) if name.endswith("Error")}
    for node in nodes:
        if isinstance(node, ast.ClassDef) and any(
            getattr(b, "id", "") in found for b in node.bases
        ):
            found[node.name] = node.name
    return found | dict.fromkeys(_LOGGED, LOG)


def _returning(nodes: Iterable[ast.AST], kinds: dict[str, str]) -> dict[str, str]:
    """Return the error class by the name of each function that returns one of its errors."""
    return {
        node.name: kind
        for node in nodes
        if isinstance(node, ast.FunctionDef) and (kind := getattr(node.returns, "id", "")) in kinds
    }


class _Names:
    """The texts that a module's constants and a function's variables stand for.

    Args:
        nodes: the module.
        shared: the constants that it may import.
    """

    def __init__(self, nodes: Iterable[ast.AST], shared: dict[str, ast.expr]) -> None:
        self._shared = shared
        found: list[tuple[Any, ast.expr | None]] = []
        self._starts: list[int] = []  # the lines at which functions begin
        for node in nodes:
            match node:
                case ast.FunctionDef(lineno=line) | ast.AsyncFunctionDef(lineno=line):
                    self._starts.append(line)
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    found += zip(targets, values, strict=False)
                case ast.Assign(targets=[target], value=value):
                    found.append((target, value))
                case ast.AugAssign(target=place, op=op, value=value):
                    found.append((place, ast.BinOp(place, op, value)))
                case ast.arguments(kwonlyargs=arguments, kw_defaults=defaults):
                    found += zip(arguments, defaults, strict=True)
        self._starts.sort()
        self._found = sorted(found, key=lambda pair: int(pair[0].lineno))

    def text(self, node: ast.expr) -> str:
        """Return an expression as text: values as names in braces, other parts as `…`."""
        match node:
            case ast.Constant(value=str(text)):
                return re.sub(r"\s+", " ", text)
            case ast.JoinedStr(values=parts):
                return "".join(map(self.text, parts))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                text = self.text(left) + self.text(right)
                return text if _has_words(text) else "…"
            case ast.IfExp(body=body, orelse=other):
                return " / ".join(filter(None, map(self.text, (body, other))))
            case ast.FormattedValue(value=value):
                return self.text(value)
            case ast.Attribute(attr=name):
                return "{type}" if name == "__name__" else f"{{{name.strip('_')}}}"
            case ast.Name(id=name):
                assigned = [*self._assigned(node)]
                if name.isupper() and assigned and isinstance(assigned[0], ast.Constant):
                    return str(assigned[0].value)
                texts = map(self.text, assigned)
                return next(filter(_has_words, texts), f"{{{name.strip('_').lower()}}}")
            case ast.Call(func=ast.Name(id="counted"), args=[_, ast.Constant(value=str(noun))]):
                return f"{{number}} {noun}s"
        return "…"

    def _assigned(self, name: ast.Name) -> Iterator[ast.expr]:
        """Yield what was assigned to a name before, latest first, then an imported constant."""
        start = max((line for line in self._starts if line <= name.lineno), default=0)
        for target, value in reversed(self._found):
            line, is_global = target.lineno, target.col_offset == 0
            is_known = start <= line < name.lineno or (is_global and line != name.lineno)
            if (
                value
                and is_known
                and name.id in (getattr(target, "id", 0), getattr(target, "arg", 0))
            ):
                yield value
        if name.id in self._shared:
            yield self._shared[name.id]


def _has_words(text: str) -> bool:
    """Return whether a text is a sentence, not a code, a name or only values."""
    return bool(re.search(r"\w\W* \W*\w", re.sub(r"\{\w+\}| / ", "", text)))
