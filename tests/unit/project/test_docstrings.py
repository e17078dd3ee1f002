"""Docstrings of functions start with an imperative verb, also where ruff's D401 sees no error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from helpers.project import PROJECT

NO_VERB = re.compile(
    r"(A|All|An|Any|As|At|Both|By|Each|Every|First|For|From|How|If|In|Its?|Last|Nothing|Of|On|One|"
    r"Only|Rows|Some|Their|The|These|This|Those|Three|To|Two|What|When|Where|Whether|Which|Who|"
    r"Whose|Why|With|[^A-Z].*)"
)


def first_words(text: str) -> Iterator[str]:
    """Yield the first word of each function's docstring, except those of properties."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        is_property = any("property" in ast.unparse(one) for one in node.decorator_list)
        if (doc := ast.get_docstring(node)) and not is_property:
            yield doc.split()[0].strip("`,.:;'")


def test_docstrings_of_functions_start_with_a_verb() -> None:
    found = [
        (path.name, word)
        for path in sorted((PROJECT / "lib").rglob("*.py"))
        for word in first_words(path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 1500  # the docstrings were read
    assert [one for one in found if NO_VERB.fullmatch(one[1])] == []


def test_a_docstring_without_a_verb_is_found() -> None:
    text = "def f():\n    'What.'\n\n@property\ndef g():\n    'A name.'\n\ndef h():\n    'Run.'\n"
    assert list(first_words(text)) == ["What", "Run"]
    assert NO_VERB.fullmatch("What")
    assert not NO_VERB.fullmatch("Return")
