"""The tests are tested: each slip in mutants.py must be noticed by the few tests it names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS, stale

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def answers() -> dict:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("mutants.py"), "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_mutants_fit_the_code():
    assert stale() == []


def test_names_are_names():
    assert len({m.what for m in MUTANTS}) == len(MUTANTS) >= 25


def test_the_tests_pass_where_nothing_is_changed(answers):
    unchanged = {what: said for what, (dead, said) in answers.items() if what.startswith("nothing changed")}
    assert unchanged and all(" passed" in said and " failed" not in said for said in unchanged.values()), unchanged


@pytest.mark.parametrize("what", [m.what for m in MUTANTS])
def test_it_is_noticed(what, answers):
    dead, said = answers[what]
    assert dead, said
