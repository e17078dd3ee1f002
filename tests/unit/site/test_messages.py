"""The page of messages: it lists what the code raises and logs, in sentences of one form."""

from __future__ import annotations

import re

from mirrorlake_docs.messages import LOG, messages, messages_page

ROWS = [
    (
        "UsageError",
        "| mirrorlake/lake | The lake's root is empty. | give a lake's folder or URI. |",
    ),
    (  # the hint is a constant of another module
        "SetupError",
        "| mirrorlake/cli/main | A file or a store can't be read or written: …. | check",
    ),
    (  # the hint is the default of an argument
        "TableNotFoundError",
        "| mirrorlake/delta/snapshot | There is no table {name} in the lake. | run `mirror` after",
    ),
    (  # the hint is built in two steps
        "TableNotFoundError",
        "| mirrorlake/query/catalog | {wanted} | did you mean …? The lake has {listed}. / The lake",
    ),
    (  # raised by the class itself
        "LeaseHeldError",
        "| mirrorlake/storage/lease | {what} is already running: {holder}. | wait for it",
    ),
    (  # returned by a function, after a code
        "RequestError",
        "| mirrorlake_serve/protocol | The path is not UTF-8. |  |",
    ),
    (
        "TableFailedError",
        "| mirrorlake/layout/maintenance | {number} tables failed. {table}: {error} |  |",
    ),
    (  # a constant's value
        "ConflictError",
        "| mirrorlake/storage/kept | {what} changed during each of 20 attempts",
    ),
    (LOG, "| mirrorlake/storage/lease | Waiting for another {what}: {holder} … |  |"),
]


def test_the_page_has_classes_modules_values_and_hints() -> None:
    sections = dict(part.split("\n", 1) for part in messages_page().split("\n## ")[1:])
    assert list(sections)[-1] == LOG
    assert [row for kind, row in ROWS if row not in sections[kind]] == []
    found = re.findall(r"\{(?:message|hint|_\w+|[A-Z]\w+)\}", messages_page())
    assert found == []


def test_every_message_is_a_sentence_and_every_hint_an_action() -> None:
    found = [row for row in messages() if row[0] != LOG]
    assert len(found) > 400
    wrong = [
        (module, message)
        for kind, module, message, _ in found
        if not re.search(r"[.}…)]( / |$)", message)
        or re.search(r"\bcannot\b|\(s\)|\.\.", message)
        or ("Hint:" in message and kind != "RequestError")  # a response has no field for a hint
    ]
    assert wrong == []
    hints = [(module, hint) for _, module, _, hint in found]
    assert [one for one in hints if "Hint:" in one[1] or re.match(r"[A-Z][a-z]", one[1])] == []
