"""What tabs and forms share: a line below that says how the work went, also how it failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from mirrorlake.errors import MirrorlakeError, first_line
from mirrorlake_lab.pages import html


class Guarded:
    """Something with buttons, whose errors are sentences: a click has no cell to show them."""

    def __init__(self) -> None:
        self.said = widgets.HTML()

    def guard(self, work: Callable[[], object]) -> None:
        """Does something whose error is shown as a sentence, with its hint."""
        self.said.value = ""
        try:
            work()
        except MirrorlakeError as error:
            self.failed()
            self.say(str(error), "bad")
        except Exception as error:  # it would be seen nowhere
            self.failed()
            self.say(f"{type(error).__name__}: {first_line(error)}", "bad")

    def failed(self) -> None:
        """What else an error brings about: nothing."""

    def say(self, message: str, kind: str = "") -> None:
        """A line below the content: a soft sentence, or one of the kinds of `html.dot`."""
        shown = html.dot(kind, message) if kind else html.note(message)
        self.said.value = html.view(f'<div role="status">{shown}</div>')

    def button(self, text: str, work: Callable[[], object], tooltip: str = "") -> widgets.Button:
        """A button whose work may take a while: it can't be pressed twice meanwhile."""
        made = widgets.Button(
            description=text, tooltip=tooltip or text, layout={"width": "max-content"}
        )

        def act(_: Any) -> None:
            made.disabled = True
            try:
                self.guard(work)
            finally:
                made.disabled = False

        made.on_click(act)
        return made


def label(text: str, width: str = "24em") -> dict[str, Any]:
    """Arguments of a field: its name, which screen readers say, and room for it."""
    return {
        "description": text,
        "style": {"description_width": "initial"},
        "layout": {"width": width, "max_width": "100%"},
    }
