"""The command line as a user meets it: in a process of its own."""

import json
import subprocess
import sys

import pytest


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
        (("bench", "--suite", "no"), "no"),
    ],
)
def test_bad_input_gets_status_2_and_one_line(words, says):
    done = tokenpace(*words)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("tokenpace: ")


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
