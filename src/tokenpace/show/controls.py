"""A button does what a line of code does. It stands beside that line, and measures into the figure that is already there."""

from __future__ import annotations

from collections.abc import Callable


def button(label: str, call: Callable, *arguments, **settings):
    """A button that calls `call(*arguments, **settings)`. It is grey while that runs, and says what went wrong if something did.

    With `screen=shown.screen` among the settings the figure is drawn where it stands instead of below: a callback has no cell of its own.
    """
    from ipywidgets import HTML, Button, HBox, Layout

    press, message = Button(description=label, layout=Layout(width="auto")), HTML()

    def pressed(_):
        press.disabled, message.value = True, "measuring …"
        try:
            call(*arguments, **settings)
            message.value = "done"
        except Exception as error:  # the kernel prints no traceback where a learner would see it
            message.value = f"{type(error).__name__}: {error}"
        finally:
            press.disabled = False

    press.on_click(pressed)
    return HBox([press, message])
