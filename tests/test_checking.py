"""Unfinished code: whatever it does, it becomes one sentence, and nothing of it is left over."""

import math
import sys
import threading
import time

import numpy as np
import pytest
import torch

from tokenpace import checking
from tokenpace.checking import Busy, Outcome, TooLong, alike, attempt, difference, told, within


def forever(x):
    while True:
        pass


def stubborn(x):
    while True:
        try:
            while True:
                pass
        except Exception:
            pass


def swallows(x):
    for _ in range(2):
        try:
            while True:
                pass
        except BaseException:
            pass
    return x


@pytest.mark.parametrize("loop", [forever, stubborn])
def test_a_loop_that_never_ends_is_ended(loop):
    came = attempt(lambda f: f(1), loop, seconds=0.2)
    assert isinstance(came.error, TooLong)
    assert "did not end within" in told(came, Outcome(1), "one")


def test_a_loop_that_swallows_the_first_is_told_again():
    started = time.monotonic()
    assert attempt(lambda f: f(1), swallows, seconds=0.2).value == 1
    assert 1 < time.monotonic() - started < 20  # two of them were needed, and nobody else came to help


def test_nothing_arrives_after_the_end():
    for _ in range(200):
        with pytest.raises((TooLong, ZeroDivisionError)) if _ % 2 else pytest.raises(ZeroDivisionError):
            within(1e-5 if _ % 2 else 10, lambda: 1 / 0)
    for _ in range(1000):  # if one were pending, it would arrive here
        assert math.sqrt(4) == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("Thread") and t.daemon and t is not threading.main_thread() and t.is_alive()]


def test_it_ends_in_another_thread_too():
    came = []
    worker = threading.Thread(target=lambda: came.append(attempt(lambda f: f(1), forever, seconds=0.2)))
    worker.start()
    worker.join(10)
    assert isinstance(came[0].error, TooLong)


def test_an_interrupt_is_the_learners_own():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(lambda f: f(1), interrupted)
    assert sys.stdout is not None and type(sys.stdout).__name__ != "_Bounded"


def test_busy_passes():
    def busy(f):
        raise Busy("the roof moved")

    with pytest.raises(Busy):
        attempt(busy, forever)


@pytest.mark.parametrize("error", [SystemExit(3), RecursionError("deep"), GeneratorExit(), ValueError("two\nlines")])
def test_whatever_is_raised_is_an_answer(error):
    def raising(x):
        raise error

    came = attempt(lambda f: f(1), raising)
    assert came.error is error
    said = told(came, Outcome(1), "one")
    assert type(error).__name__ in said and "raise error" in said and "\n" not in said and "(Tried: one.)" in said


def test_what_is_printed_is_kept_short():
    def loud(x):
        for _ in range(1000):
            print("x" * 1000)
        print("y", file=sys.stderr)
        return x

    came = attempt(lambda f: f(1), loud)
    assert came.value == 1 and len(came.printed) < 400 and "1,001,002 characters" in came.printed


def test_changed_inputs_are_named():
    def greedy(tokens, x, table, kept):
        tokens.append(1)
        x += 1
        table["a"] = 2
        return 0

    came = attempt(lambda f: f([1], torch.zeros(2), {}, kept=[3]), greedy)
    assert came.changed == {"tokens", "x", "table"}
    said = told(came, Outcome(0), "")
    assert "table and tokens and x" in said


def test_a_generator_is_watched_to_its_end():
    def generator(tokens):
        yield 1
        tokens.append(2)
        yield 2

    assert attempt(lambda f: list(f([1])), generator).changed == {"tokens"}


def test_nan_inputs_are_not_changed_by_looking():
    assert attempt(lambda f: f(torch.tensor([math.nan])), lambda x: 1).changed == set()


BF16 = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        (None, 1, "None"),
        (None, torch.ones(2), "None"),
        ([1.0, 2.0], torch.tensor([1.0, 2.0]), "a list, but a tensor of shape [2] was expected; `torch.tensor"),
        (np.ones(2), torch.ones(2), "an array of NumPy"),
        (torch.ones(3), torch.ones(2), "shape [3], but [2]"),
        (torch.ones(2).double(), torch.ones(2), "float64, but float32"),
        (torch.tensor([1.0, math.nan]), torch.ones(2), "NaN in it, first at [1]"),
        (torch.tensor([1.0, 2.0]), torch.ones(2), "1 of 2 numbers are off, first at [1]: 2, but 1"),
        (BF16 * 1.05, BF16, "are off"),
        (torch.tensor(3.0), 3.0, "`.item()`"),
        (torch.tensor([1, 2]), [1, 2], "a tensor, but a list"),
        (True, 1, "True"),
        (1, True, "1, but True"),
        ("3", 3, "a string, but a number"),
        (3, "3", "3, but '3'"),
        (2.5, 3, "2.5, but 3"),
        (math.nan, 3.0, "NaN"),
        (1e9, 2.0**30, "1e+09, but 1.07374e+09"),
        ([1, 2], [1, 2, 3], "2 of them"),
        ([1, 9, 3], [1, 2, 3], "[1, 9, 3], but [1, 2, 3]"),
        ({"a": 1}, {"a": 2}, "at 'a': it gives 1"),
        ({"a": 1}, {"b": 1}, "{'a': 1}"),
        ([torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(2)], "in place 1 (counted from 0): it gives a tensor of shape [3]"),
        (5, [5], "a number, but a list of 1"),
    ],
)
def test_every_difference_is_told(got, want, says):
    assert says in difference(got, want)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (1.0 + 1e-9, 1.0),
        (1, 1.0),
        (np.float32(2), 2.0),
        (np.int64(2), 2),
        ((1, 2), [1, 2]),
        (torch.tensor([1.0 + 1e-6]), torch.tensor([1.0])),
        (BF16 * (1 + 2**-8), BF16),
        (torch.tensor([math.nan]), torch.tensor([math.nan])),
        (math.nan, math.nan),
        (torch.tensor([-math.inf]), torch.tensor([-math.inf])),
        ({"a": [1]}, {"a": (1,)}),
        (None, None),
    ],
)
def test_what_does_not_count(got, want):
    assert difference(got, want) is None


def test_unlike_errors_are_unlike():
    assert alike(Outcome(error=ValueError()), Outcome(error=ValueError("x")))
    assert not alike(Outcome(error=ValueError()), Outcome(error=KeyError())) and not alike(Outcome(1), Outcome(error=KeyError()))
    assert "should raise ValueError" in told(Outcome(3), Outcome(error=ValueError()), "")
    assert told(Outcome(error=ValueError("a")), Outcome(error=ValueError("b")), "") is None


def test_an_object_whose_repr_fails():
    class Odd:
        def __repr__(self):
            raise RuntimeError

    assert "something of type Odd" in difference(Odd(), 1) and "something of type Odd" in difference(Odd(), "x")


def test_patience_is_that_of_a_person():
    assert 5 <= checking.PATIENCE <= 15
