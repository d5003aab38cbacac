"""A button does what a line of code does. It stands beside that line, and measures into the figure that is already there."""

from __future__ import annotations

from collections.abc import Callable
from html import escape


def button(label: str, call: Callable, *arguments, **settings):
    """A button that calls `call(*arguments, **settings)`. It is grey while that runs, and says what went wrong if something did.

    With `screen=shown.screen` among the settings the figure is drawn where it stands instead of below: a callback has no cell of its own.
    """
    from ipywidgets import HTML, Button, HBox, Layout

    press, message = Button(description=label, layout=Layout(width="auto")), HTML()

    def pressed(_):
        press.disabled, message.value = True, "measuring …"
        try:
            message.value = _tried(call, *arguments, **settings) or "done"
        finally:
            press.disabled = False

    press.on_click(pressed)
    return HBox([press, message])


def sliders(call: Callable, *arguments, ranges: dict[str, tuple], **settings):
    """A slider for each of `ranges`, name -> (lowest, highest, step, where it stands first); whole numbers make a slider of whole numbers.

    When one is let go, `call(*arguments, **settings, name=…)` runs with all of them. While one is being moved nothing happens.
    """
    from ipywidgets import HTML, FloatSlider, IntSlider, VBox

    kinds = {name: IntSlider if all(isinstance(number, int) for number in span) else FloatSlider for name, span in ranges.items()}
    made = {
        name: kinds[name](min=low, max=high, step=step, value=first, description=name, continuous_update=False)
        for name, (low, high, step, first) in ranges.items()
    }
    message = HTML()

    def moved(_):
        message.value = _tried(call, *arguments, **settings, **{name: slider.value for name, slider in made.items()})

    for slider in made.values():
        slider.observe(moved, "value")
    return VBox([*made.values(), message])


def _tried(call: Callable, *arguments, **settings) -> str:
    """Call it; what went wrong, in HTML, for the kernel prints no traceback where a learner would see it."""
    try:
        call(*arguments, **settings)
    except Exception as error:
        return escape(f"{type(error).__name__}: {error}", quote=False)
    return ""
