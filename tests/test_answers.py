"""A learner's answers: nothing that was written is ever lost, whatever happens to the file."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tokenpace import answers


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENPACE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_kept_and_read(folder):
    assert answers.read() == {kind: {} for kind in answers.KINDS} and not folder.exists()
    assert answers.keep("predictions", "01.ratio", {"value": 3.0})
    assert answers.keep("predictions", "01.ratio", {"value": 4.0}) and answers.keep("exercises", "01.1", {"done": True})
    assert answers.read()["predictions"] == {"01.ratio": {"value": 4.0}} and answers.read()["exercises"] == {"01.1": {"done": True}}
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 3, "what was kept before must not be lost"


def test_forgotten():
    answers.keep("exercises", "01.1", {"done": True})
    answers.keep("exercises", "01.1", None)
    assert answers.read()["exercises"] == {}


def test_outside_the_repository_by_default(monkeypatch):
    monkeypatch.delenv("TOKENPACE_DATA")
    root = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
    assert not os.path.realpath(answers.path()).startswith(root + os.sep) and answers.path().name == "answers.jsonl"


@pytest.mark.parametrize(
    "bad",
    [
        b"{half a li",
        b"\xff\xfe\x00",
        b"[]",
        b'{"kind": "x"}',
        b'{"kind": "exercises", "name": 3, "value": {}}',
        b'{"kind": [], "name": "a", "value": {}}',
        b'{"kind": "exercises", "name": "01.9", "value": 3}',
        b'"text"',
        b"",
        b"\0" * 100,
        b"[" * 100_000,
        b"1" * 5_000,
        b'{"kind": "predictions", "name": "01.a", "value": {"value": "abc"}}',
        b'{"kind": "predictions", "name": "01.a", "value": {"value": 1e999}}',
        b'{"kind": "predictions", "name": "01.a", "value": {"value": 1' + b"0" * 400 + b"}}",
        b'{"kind": "predictions", "name": "01.a", "value": {"when": "2026-01-01"}}',
        b'{"kind": "exercises", "name": "01.9", "value": {"tries": "3"}}',
        b'{"kind": "exercises", "name": "01.9", "value": {"state": "solved"}}',
        b'{"kind": "exercises", "name": "01.9", "value": {"state": ["done"]}}',
        b'{"kind": "exercises", "name": "01.9", "value": {"source": 3}}',
        b'{"kind": "ledger", "name": "a", "value": {}}',
        b'{"kind": "ledger", "name": "a", "value": {"machine": "m", "row": []}}',
    ],
    ids=lambda line: str(line[-30:]),
)
def test_a_damaged_line_costs_that_line(folder, bad, capsys):
    answers.keep("exercises", "01.1", {"done": True})
    file = folder / "answers.jsonl"
    whole = file.read_bytes() + bad + b"\n"
    file.write_bytes(whole)
    answers.keep("exercises", "01.2", {"done": False})
    whole = file.read_bytes()
    assert list(answers.read()["exercises"]) == ["01.1", "01.2"]
    (aside,) = folder.glob("answers.damaged-*")
    assert aside.read_bytes() == whole and "could not be read" in capsys.readouterr().err
    assert list(answers.read()["exercises"]) == ["01.1", "01.2"] and capsys.readouterr().err == ""
    assert len(list(folder.glob("answers.damaged-*"))) == 1


def test_all_of_it_damaged(folder, capsys):
    folder.mkdir()
    (folder / "answers.jsonl").write_bytes(os.urandom(300).replace(b"\n", b"x"))
    assert answers.read()["claims"] == {} and "a new one was begun" in capsys.readouterr().err
    assert answers.keep("claims", "a", {}) and answers.read()["claims"] == {"a": {}}


def test_a_write_that_was_cut_off_spoils_only_itself(folder):
    answers.keep("exercises", "01.1", {"done": True})
    with open(folder / "answers.jsonl", "ab") as file:
        file.write(b'{"kind": "exercises", "na')
    answers.keep("exercises", "01.2", {"done": True})
    assert list(answers.read()["exercises"]) == ["01.1", "01.2"]


def test_two_programs_at_once(folder):
    code = "from tokenpace import answers\nfor i in range(200): answers.keep('exercises', f'NAME.{i}', {'source': 'x' * 3000})"
    both = [subprocess.Popen([sys.executable, "-c", code.replace("NAME", name)]) for name in "ab"]
    assert [p.wait(60) for p in both] == [0, 0]
    assert len(answers.read()["exercises"]) == 400 and not list(folder.glob("answers.damaged-*"))


def test_a_place_that_cannot_be_written(folder, monkeypatch, capsys):
    folder.parent.joinpath("data").write_text("a file where a folder should be")
    assert answers.keep("exercises", "01.1", {}) is False
    assert "could not be written to your answers" in capsys.readouterr().err
    assert answers.read()["exercises"] == {}


def test_a_kind_from_a_later_version_is_left_alone(folder):
    answers.keep("exercises", "01.1", {"done": True})
    with open(folder / "answers.jsonl", "a") as file:
        file.write(json.dumps({"kind": "badges", "name": "a", "value": {}}) + "\n")
    assert "01.1" in answers.read()["exercises"] and answers.read()["badges"] == {"a": {}}
    assert not list(folder.glob("answers.damaged-*"))


def test_what_another_program_writes_while_a_file_is_put_aside_is_in_the_new_one(folder, monkeypatch, capsys):
    answers.keep("exercises", "01.1", {"done": True})
    with open(folder / "answers.jsonl", "ab") as file:
        file.write(b"{half a li\n")
    replace, code = os.replace, "from tokenpace import answers; answers.keep('exercises', '01.2', {'done': True}) or exit(1)"
    others = []

    def meanwhile(old, new):
        others.append(subprocess.Popen([sys.executable, "-c", code]))
        time.sleep(2)  # by now it waits
        replace(old, new)

    monkeypatch.setattr(os, "replace", meanwhile)
    answers.read()
    monkeypatch.undo()
    monkeypatch.setenv("TOKENPACE_DATA", str(folder))
    assert others[0].wait(60) == 0 and sorted(answers.read()["exercises"]) == ["01.1", "01.2"]


@pytest.mark.parametrize("fails", ["aside", "new", "replaced"])
def test_a_full_disk_while_a_damaged_file_is_put_aside_loses_nothing(folder, monkeypatch, capsys, fails):
    for i in range(3):
        answers.keep("exercises", f"01.{i}", {"done": True})
    with open(folder / "answers.jsonl", "ab") as file:
        file.write(b"{half a li")
    write = Path.write_bytes

    def full(path, data):
        if path.suffix == (".new" if fails == "new" else ".jsonl"):
            write(path, data[:10])
            raise OSError(28, "No space left on device")
        return write(path, data)

    def refuse(old, new):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "replace", refuse) if fails == "replaced" else (Path, "write_bytes", full)))
    for _ in range(2):
        assert len(answers.read()["exercises"]) == 3 and "could not be put aside" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} <= {"answers.jsonl", "answers.lock"}
    monkeypatch.undo()
    monkeypatch.setenv("TOKENPACE_DATA", str(folder))
    assert len(answers.read()["exercises"]) == 3 and len(list(folder.glob("answers.damaged-*"))) == 1


@pytest.mark.parametrize("why", ["no locks here", "somebody was stopped while holding it"])
def test_without_a_lock_one_reads_and_writes_all_the_same(folder, monkeypatch, capsys, why):
    import filelock

    def acquire(self, *_, **__):
        raise filelock.Timeout("held") if "stopped" in why else OSError(37, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    assert answers.keep("exercises", "01.1", {"done": True}) and list(answers.read()["exercises"]) == ["01.1"]
    assert capsys.readouterr().err == ""


def test_the_home_folder_of_nobody(monkeypatch, capsys):
    monkeypatch.setenv("TOKENPACE_DATA", "~nosuchuser/x")
    assert answers.read()["exercises"] == {} and answers.keep("exercises", "01.1", {}) is False
    assert "could not be read" in capsys.readouterr().err


def test_a_link_to_a_file_elsewhere(folder, tmp_path, capsys):
    folder.mkdir()
    (tmp_path / "elsewhere.jsonl").touch()
    (folder / "answers.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    assert answers.keep("exercises", "01.1", {"done": True}) and (tmp_path / "elsewhere.jsonl").stat().st_size
    with open(folder / "answers.jsonl", "ab") as file:
        file.write(b"{half a li\n")
    assert answers.read() and answers.read()["exercises"] == {"01.1": {"done": True}}
    assert b"half a li" in (tmp_path / "elsewhere.jsonl").read_bytes()


def test_a_folder_in_its_place(folder, capsys):
    (folder / "answers.jsonl").mkdir(parents=True)
    assert answers.read()["exercises"] == {} and answers.keep("exercises", "01.1", {}) is False
    said = capsys.readouterr().err
    assert "could not be read" in said and "could not be written" in said


def test_the_home_folder_may_be_written_short(monkeypatch):
    monkeypatch.setenv("TOKENPACE_DATA", "~/answers of mine")
    assert answers.path() == Path.home() / "answers of mine" / "answers.jsonl"
