"""JupyterLab as a learner has it in front of them, for a test to drive: a server of its own, and a notebook open in a browser without a window.

The server is a process on a free port that keeps all it writes in one folder. Nothing here sleeps: everything waits until something is so.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil

WAIT = 60  # s, at most, for whatever takes a moment
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # all cells are on the page, also those that are not in sight
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},  # and nothing asks whether it may
    "docmanager-extension/plugin": {"autosave": False},
}
ERRORS = r"""() => [...document.querySelectorAll('.jp-CodeCell .jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]')]
    .map(output => output.innerText).filter(text => /Traceback \(most recent call last\)|^\w*(Error|Interrupt)\b/m.test(text))"""


def browser() -> str | None:
    """Where a browser is that was installed on this machine, if one is."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def sandbox() -> list[str]:
    """The browser's own sandbox works for anybody but root."""
    return ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []


class Server:
    """JupyterLab on a copy of `notebooks`. Settings, kernels' files, histories and the log lie in `folder` with it."""

    def __init__(self, folder: Path, notebooks: Path, **environment: str):
        self.folder, self.notebooks, self.token = folder, folder / "notebooks", secrets.token_hex(16)
        shutil.copytree(notebooks, self.notebooks, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        for name, settings in SETTINGS.items():
            path = folder / "config" / "lab" / "user-settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings))
        places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython"}
        places["TOKENPACE_DATA"] = "answers"
        dropped = {name for name in os.environ if name.startswith(("JUPYTER", "COURSE_"))}  # what is set here is none of the learner's
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        self.log = folder / "server.log"
        options = {"ServerApp.ip": "127.0.0.1", "ServerApp.port": 0, "ServerApp.open_browser": False, "ServerApp.allow_root": True}
        options |= {"ServerApp.root_dir": self.notebooks, "IdentityProvider.token": self.token}
        command = [sys.executable, "-m", "jupyterlab", *(f"--{name}={value}" for name, value in options.items())]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=kept | {name: str(folder / place) for name, place in places.items()} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self.address = self._address()
        except BaseException:
            self.stop()
            raise

    def _address(self) -> str:
        """The server says where it listens once it does."""
        until = time.monotonic() + WAIT
        while self.process.poll() is None and time.monotonic() < until:
            for line in re.findall(r"(http://127\.0\.0\.1:\d+)/lab\?token=", self.log.read_text(errors="replace")):
                return line
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def page(self, notebook: str) -> str:
        """The address of a notebook."""
        return f"{self.address}/lab/tree/{notebook}?token={self.token}"

    def processes(self) -> list[psutil.Process]:
        """The server, its kernels, and whatever they started; nothing once it has ended."""
        if self.process.poll() is not None:
            return []
        server = psutil.Process(self.process.pid)
        return [server, *server.children(recursive=True)]

    def stop(self) -> list[psutil.Process]:
        """End the server, and it its kernels. What is there still after ten seconds is killed, and returned."""
        family = self.processes()
        self.process.terminate()
        psutil.wait_procs(family, timeout=10)
        left = [one for one in family if alive(one)]
        for one in left:
            one.kill()
        psutil.wait_procs(left, timeout=10)
        self.process.wait(10)
        return left


def alive(process: psutil.Process) -> bool:
    """Is it running? One that has ended and that nobody has asked about is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Book:
    """A notebook in JupyterLab, opened in a page of a browser. Cells are counted from 0, text cells too."""

    def __init__(self, page, server: Server, name: str):
        self.page, self.source = page, nbformat.read(server.notebooks / name, as_version=4).cells
        page.set_default_timeout(1000 * WAIT)
        page.goto(server.page(name))
        self.cells = page.locator(".jp-Notebook .jp-Cell")
        self.until(f"document.querySelectorAll('.jp-Notebook .jp-Cell').length >= {len(self.source)}")
        self.until("document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'")

    def find(self, text: str) -> int:
        """The number of the one cell whose source holds `text`."""
        (number,) = (i for i, cell in enumerate(self.source) if text in cell.source)
        return number

    def cell(self, number: int):
        return self.cells.nth(number)

    def until(self, so: str, *about, seconds: float = WAIT):
        """Wait until a JavaScript expression is true of the page, or a function of `about`; return what it came to."""
        return self.page.wait_for_function(so, arg=list(about), timeout=1000 * seconds, polling=50).json_value()

    # what a learner does ---------------------------------------------------------------------------------------------

    def menu(self, menu: str, *entries: str) -> None:
        """Choose from the menu bar, through submenus."""
        self.page.locator("#jp-MainMenu").get_by_role("menuitem", name=menu, exact=True).click()
        for entry in entries:
            self.page.locator(".lm-Menu").last.locator(".lm-Menu-itemLabel").get_by_text(entry, exact=True).click()

    def interrupt(self) -> None:
        """Press the square in the toolbar."""
        self.page.locator(".jp-NotebookPanel-toolbar [data-jp-item-name=interrupt] > *").click()

    def select(self, number: int) -> None:
        """Click beside a cell, which selects it and leaves it as it is."""
        self.cell(number).scroll_into_view_if_needed()
        self.cell(number).locator(".jp-InputArea-prompt").click()

    def write(self, number: int, code: str) -> None:
        """Replace what stands in a code cell."""
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(code)

    def start(self, number: int) -> str:
        """Run a cell, and don't wait for its end. Returns the count that it had."""
        before = self.counts()[number]
        self.select(number)
        self.page.keyboard.press("ControlOrMeta+Enter")
        return before

    def end(self, number: int, before: str, seconds: float = WAIT) -> str:
        """Wait until a cell that was started has run; return what it says, an error too."""
        self.until(
            r"""([number, before]) => {
                const now = document.querySelectorAll('.jp-Notebook .jp-Cell')[number].querySelector('.jp-InputPrompt').innerText
                return /\d/.test(now) && !now.includes(`[${before}]`)
            }""",
            number,
            before,
            seconds=seconds,
        )
        # text is put there frame by frame
        self.page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        return self.says(number)

    def run(self, number: int, seconds: float = WAIT) -> str:
        return self.end(number, self.start(number), seconds)

    def run_all(self, seconds: float) -> None:
        """Run all cells, to the end of the last or to the first that fails."""
        self.menu("Run", "Run All Cells")
        self.until(
            rf"""() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].every(one => /\d/.test(one.innerText))
                || ({ERRORS})().length""",
            seconds=seconds,
        )

    def scratch(self, code: str, seconds: float = WAIT) -> str:
        """Run `code` in a cell below the last one of the notebook."""
        number = len(self.source)
        if self.cells.count() == number:
            self.select(number - 1)
            self.page.keyboard.press("b")
            self.until(f"document.querySelectorAll('.jp-Notebook .jp-Cell').length > {number}")
        self.write(number, code)
        return self.run(number, seconds)

    # what a learner sees -------------------------------------------------------------------------------------------

    def counts(self) -> list[str]:
        """What stands in brackets before each cell: its count, * while it runs or waits, nothing."""
        return [re.sub(r"[\[\]:\s]", "", text) for text in self.cells.locator(".jp-InputArea-prompt").all_inner_texts()]

    def says(self, number: int) -> str:
        """The text under a cell."""
        return "\n".join(self.cell(number).locator(".jp-OutputArea-output").all_inner_texts()).strip()

    def errors(self) -> list[str]:
        """What went wrong, in any cell."""
        return self.page.evaluate(ERRORS)

    def picture(self, number: int):
        return self.cell(number).locator(".jp-RenderedImage img").last

    def sentence(self, number: int):
        return self.cell(number).locator("p[role=status]").last
