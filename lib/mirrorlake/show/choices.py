"""A picture for each of several choices: a list or a slider in Lab, and one of them on paper."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from mirrorlake.errors import UsageError

if TYPE_CHECKING:
    import ipywidgets

    from mirrorlake.show.plots import Chart


class Choices:
    """Pictures to choose from; each is drawn when it is chosen.

    Attributes:
        label: what is chosen.
        choices: what there is to choose from.
        chosen: the choice that is shown.
    """

    def __init__(
        self, draw: Callable[[Any], Chart], choices: Sequence[Any], chosen: Any, label: str
    ) -> None:
        self.label = label
        self.choices = list(choices)
        self.chosen = chosen
        self._draw = draw
        self._chart = draw(chosen)
        self._widget: ipywidgets.VBox | None = None

    def __repr__(self) -> str:
        return f"{self.label}: {self.chosen}, one of {len(self.choices)}"

    def choose(self, chosen: Any) -> Chart:
        """Draws another one, and shows it where the widget is shown.

        Raises:
            UsageError: it is none of the choices.
        """
        if chosen not in self.choices:
            raise UsageError(f"{chosen!r} is none of the choices.", hint=f"{self.choices}.")
        self.chosen, self._chart = chosen, self._draw(chosen)
        if self._widget is not None:
            self._widget.children[1].value = self._picture()
        return self._chart

    @property
    def widget(self) -> ipywidgets.VBox:
        """The choices above the picture, made when first asked for.

        Numbers have a slider, which draws when it is let go; texts have a list.
        """
        if self._widget is None:
            import ipywidgets as widgets

            options: dict[str, Any] = {"options": self.choices, "value": self.chosen}
            if all(isinstance(choice, int) for choice in self.choices):
                control = widgets.SelectionSlider(continuous_update=False, **options)
            else:
                control = widgets.Dropdown(**options)
            control.description = self.label
            control.observe(lambda change: self.choose(change["new"]), names="value")
            self._widget = widgets.VBox([control, widgets.HTML(self._picture())])
        return self._widget

    def _picture(self) -> str:
        data, facts = self._chart._repr_png_()
        return (
            f'<img class="mirrorlake-figure" alt="{escape(facts["alt"])}" width="{facts["width"]}"'
            f' src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        )

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The widget, and the chosen picture for readers without a kernel."""
        data, facts = self._chart._repr_png_()
        bundle: dict[str, Any] = {"text/plain": repr(self), "image/png": data}
        try:
            live = self.widget._repr_mimebundle_(**options)
        except ImportError:
            live = None
        return {**(live or {}), **bundle}, {"image/png": facts}


def plot_choices(
    draw: Callable[[Any], Chart], choices: Sequence[Any], *, chosen: Any = None, label: str = ""
) -> Choices:
    """One picture of several, chosen in Lab by a list, or numbers by a slider.

    Args:
        draw: makes the picture of a choice.
        choices: texts or whole numbers, at least one.
        chosen: the first to be shown; by default the first of the choices.
        label: what is chosen.

    Raises:
        UsageError: there is nothing to choose, or `chosen` is none of the choices.

    Example:
        >>> from mirrorlake import plot_bars
        >>> plot_choices(lambda n: plot_bars({"n": n}, title="n"), [1, 2, 3], label="n")
        n: 1, one of 3
    """
    if not choices:
        raise UsageError("There is nothing to choose from.", hint="give at least one choice.")
    chosen = choices[0] if chosen is None else chosen
    if chosen not in choices:
        raise UsageError(f"{chosen!r} is none of the choices.", hint=f"{list(choices)}.")
    return Choices(draw, choices, chosen, label)
