"""A learner's answers: nothing that was written is ever lost, whatever happens to the file."""

import json
import os
import subprocess
import sys

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
    "bad", [b"{half a li", b"\xff\xfe\x00", b"[]", b'{"kind": "x"}', b'{"kind": "exercises", "name": 3, "value": {}}', b'"text"', b""]
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
