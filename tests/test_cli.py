"""The command line as a user meets it: in a process of its own."""

import json
import subprocess
import sys

import pytest
import torch

import tokenpace.race
from tokenpace.__main__ import COMMANDS, main


def tokenpace(*words, **how):
    return subprocess.run([sys.executable, "-m", "tokenpace", *words], capture_output=True, text=True, timeout=300, **how)


SMALL = ("--model", "shape:15m", "--dtype", "float32", "--device", "cpu", "--max-new-tokens", "4")


def test_generate_json_is_one_object_and_nothing_else():
    done = tokenpace("generate", *SMALL, "--prompt", "1 2 3", "--json")
    assert done.returncode == 0 and done.stderr == ""
    out = json.loads(done.stdout)
    assert len(out["tokens"]) == 4 and out["passes"] == 4 and out["finish_reason"] == "length" and out["seconds"] > 0


def test_generate_writes_the_text_on_stdout_and_what_it_took_on_stderr():
    done = tokenpace("generate", *SMALL, "--prompt", "-", input="1 2 3")
    assert done.returncode == 0 and len(done.stdout.split()) == 4
    assert "4 tokens in 4 passes" in done.stderr


DEVICES = {"foo": "device 'foo' is not one that PyTorch knows", "meta": "device 'meta' has shapes but no numbers"}
for name, there in (
    ("cuda", torch.cuda.is_available()),
    ("mps", torch.backends.mps.is_available()),
    ("cuda:99", False),
    ("xpu", torch.xpu.is_available()),
):
    if not there:
        DEVICES[name] = f"device '{name}' was asked for, but "


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("generate", "--prompt", "x", "--model", "smolm2-135m"), "did you mean smollm2-135m"),
        (("generate", "--prompt", "x", *SMALL), "no vocabulary"),
        (("generate", "--prompt", "", *SMALL), "prompt is empty"),
        (("generate", "--prompt", "1", *SMALL, "--top-p", "0"), "top_p is 0.0, but must be over 0"),
        (("generate", "--prompt", "1", *SMALL, "--temperature", "-1"), "temperature is -1.0"),
        (("generate", "--prompt", "1", *SMALL, "--seed", "x"), "--seed"),
        (("generate", "--prompt", "1", *SMALL, "--device", "quantum"), "device 'quantum'"),
        (("generate",), "--prompt"),
        (("generat",), "invalid choice"),
        (("fetch", "smollm3"), "did you mean smollm2-135m"),
        (("bench", "no"), "no"),
        *((("probe", "--device", d, *json), says) for d, says in DEVICES.items() for json in ((), ("--json",))),
        *((("generate", "--prompt", "1", *SMALL, "--device", d), says) for d, says in DEVICES.items()),
        *((("probe", "--budget", b), "budget must be finite seconds") for b in ("-1", "nan", "inf")),
        (("generate", "--prompt", "1", *SMALL, "--decoder", "refine"), "needs a model with a mask token, and its id: use it from Python"),
        (("race", "--prompt", "1", *SMALL, "--decoder", "refine"), "needs a model with a mask token, and its id: use it from Python"),
        (("generate", "--prompt", "1", *SMALL, "--chat"), "--chat needs a chat template, and this model has no vocabulary"),
        (("race", "--prompt", "", *SMALL, "--json"), "prompt is empty"),
        (("race", "--prompt", "1", *SMALL, "--decoder", "autoregressiv"), "did you mean autoregressive"),
        (("race", "--prompt", "1", *SMALL, "--max-new-tokens", "1"), "a race needs max_new_tokens of at least 2"),
    ],
)
def test_bad_input_gets_status_2_and_one_line(words, says, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["tokenpace.race"], "probe", None)  # whatever is wrong is known before a second is spent
    assert main([*words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1 and err.startswith("tokenpace: ")


def test_bad_input_in_a_process_of_its_own():
    done = tokenpace("probe", "--device", "foo")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("tokenpace: device 'foo'") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("error", [AssertionError("two\nlines"), KeyError("key"), RecursionError(), StopIteration(), AttributeError("x")])
def test_what_nobody_foresaw_is_one_line_too(error, capsys, monkeypatch):
    def broken(a):
        raise error

    monkeypatch.setitem(COMMANDS, "doctor", (broken, *COMMANDS["doctor"][1:]))
    assert main(["doctor"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"tokenpace: {type(error).__name__}: ")
    assert "this is a fault of tokenpace: please report it" in err and err.count("\n") == 1


def test_an_interrupt_is_130(capsys, monkeypatch):
    def interrupted(a):
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "doctor", (interrupted, *COMMANDS["doctor"][1:]))
    assert main(["doctor"]) == 130 and capsys.readouterr().err == "\nstopped\n"


def test_with_json_an_error_is_all_that_is_said(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENPACE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for words in (["fetch", "smollm2-135m", "--json"], ["generate", "--prompt", "x", "--json"]):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("tokenpace: could not download smollm2-135m") and err.count("\n") == 1


def test_doctor_reports_every_part():
    findings = json.loads(tokenpace("doctor", "--json").stdout)["findings"]
    assert {"python", "torch", "memory", "disk", "model"} <= {f["name"] for f in findings}


def test_probe_gives_all_three_ceilings():
    roof = json.loads(tokenpace("probe", "--budget", "6", "--json").stdout)
    assert {p["task"]["kind"] for p in roof["points"]} == {"read", "multiply", "launch"}


def test_race_gives_a_row_for_each_decoder():
    done = tokenpace("race", *SMALL, "--prompt", "1 2 3 1 2 3 1 2", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [r["name"] for r in rows] == ["autoregressive", "uncached", "speculative"]
    assert all(r["exact"] and r["mbu"] is None and "no MBU" in r["why"] for r in rows), "15 M parameters may sit in a cache"
