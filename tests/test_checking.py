"""Unfinished code: whatever it does, it becomes one sentence, and nothing of it is left over."""

import copy
import functools
import gc
import math
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch

from tokenpace import checking, patience
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


def step():
    return sum(range(100))


def bare(x):
    while True:
        try:  # noqa: SIM105
            step()
        except:  # noqa: E722
            pass


def nested(x):
    while True:
        try:
            try:
                for _ in range(10**9):
                    step()
            except BaseException:
                step()
        except BaseException:
            continue


def deeper_and_deeper(x):
    try:
        while True:
            step()
    except BaseException:
        deeper_and_deeper(x)


def tells(x):
    while True:
        try:
            [time.sleep(0.001) for _ in range(1000)]
        except:  # noqa: E722
            print("something went wrong, again")


def finally_on(x):
    while True:
        try:
            step()
        finally:
            continue  # noqa: B012


def sleeps(x):
    while True:
        try:  # noqa: SIM105
            time.sleep(1000)
        except:  # noqa: E722
            pass


def waits(x):
    threading.Event().wait()


def locked(x):
    lock = threading.Lock()
    while True:
        lock.acquire()


def yields(x):
    def numbers():
        while True:
            yield 1

    return sum(numbers())


LOOPS = [forever, stubborn, bare, nested, deeper_and_deeper, tells, finally_on, yields]


@pytest.mark.parametrize("loop", [*LOOPS, *([sleeps, waits, locked] if sys.platform != "win32" else [])], ids=lambda f: f.__name__)
def test_a_loop_that_never_ends_is_ended(loop):
    before = signal.getsignal(signal.SIGURG) if sys.platform != "win32" else None
    came = attempt(lambda f: f(1), loop, seconds=0.2)
    assert isinstance(came.error, TooLong) and type(came.error) is TooLong
    assert "did not end within" in told(came, Outcome(1), "one")
    assert sys.platform == "win32" or signal.getsignal(signal.SIGURG) is before
    for _ in range(1000):  # if another were on its way, it would arrive here
        step()


def test_code_that_catches_every_exception_never_ends_with_a_value():
    def careful(x):
        try:
            while True:
                step()
        except Exception:
            return 1

    assert type(attempt(lambda f: f(1), careful, seconds=0.2).error) is TooLong


@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_it_is_ended_in_another_thread_too(loop):
    came = []
    worker = threading.Thread(target=lambda: came.append(attempt(lambda f: f(1), loop, seconds=0.2)))
    worker.start()
    worker.join(20)
    assert isinstance(came[0].error, TooLong)


def test_a_list_without_end_is_stopped_before_the_memory_is_gone(monkeypatch):
    monkeypatch.setattr(patience, "ROOM", 200 << 20)

    def grows(x):
        tokens = [1]
        for token in tokens:
            tokens.append(token)

    came = attempt(lambda f: f(1), grows, seconds=60)
    assert isinstance(came.error, patience.TooMuch) and "a list that grows without end" in told(came, Outcome(1), "")


PRESSED = """
import contextlib, os, random, signal, sys, threading, time
from tokenpace.checking import TooLong, attempt

def step(): return sum(range(100))
def loop(x):
    while True: pass
def bare(x):
    while True:
        try: step()
        except: pass
def short(x): return x

code, out, chance, stop, left, came = {"loop": loop, "bare": bare, "short": short}[sys.argv[1]], sys.stdout, random.Random(0), False, [], 0
attempt(lambda f: f(1), short)  # imports PyTorch, which does not survive an interrupt while it is imported

def press():
    while not stop:
        time.sleep(chance.uniform(0, 0.004))
        os.kill(os.getpid(), signal.SIGINT)

def interrupt(number, frame):
    global came
    while frame and frame.f_code is not attempt.__code__: frame = frame.f_back
    if frame:
        came += 1
        raise KeyboardInterrupt

sys.unraisablehook = lambda what: None  # an interrupt within a weak reference's callback, which Python itself drops
signal.signal(signal.SIGINT, interrupt)
fingers, ends = threading.Thread(target=press), time.monotonic() + 3
fingers.start()
while time.monotonic() < ends:
    try: attempt(lambda f: f(1), code, seconds=0.02)
    except KeyboardInterrupt: pass
    except TooLong as error: left.append(error)
stop = True
fingers.join()
for _ in range(50):  # longer than any patience
    time.sleep(0.05)
    step()
print(came > 100, sys.stdout is out, left, threading.active_count())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there an interrupt is no signal that can be sent")
@pytest.mark.parametrize("code", ["loop", "bare", "short"])
def test_interrupts_at_any_moment_leave_nothing_behind(code):
    """Hundreds of them, at random: no watcher stays, and none raises anything in code that is not its own."""
    run = subprocess.run([sys.executable, "-c", PRESSED, code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "True True [] 1\n", run.stdout + run.stderr


SETTINGS = {
    "PyTorch's default dtype": lambda x: torch.set_default_dtype(torch.float64),
    "whether PyTorch keeps gradients": lambda x: [torch.set_grad_enabled(not torch.is_grad_enabled())].clear(),
    "PyTorch's number of threads": lambda x: torch.set_num_threads(torch.get_num_threads() + 1),
    "Python's recursion limit": lambda x: sys.setrecursionlimit(sys.getrecursionlimit() + 5),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_everybody_are_put_back_and_told(name):
    state = lambda: (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), sys.getrecursionlimit())
    before, change = state(), SETTINGS[name]
    came = attempt(lambda f: f(1), change)
    assert state() == before and came.left == {name}
    assert name in told(came, Outcome(came.value), "") and told(came, Outcome(came.value, left={name}), "") is None

    def fails(x):
        change(x)
        raise ValueError

    attempt(lambda f: f(1), fails)
    assert state() == before


def test_seeds_are_put_back_and_are_no_fault():
    draw = lambda: (torch.rand(1).item(), random.random(), np.random.rand())
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    want = draw()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    assert attempt(lambda f: f(1), lambda x: (draw(), torch.manual_seed(0)) and 1).left == set()
    assert draw() == want


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


@dataclass
class Pair:
    numbers: list
    x: torch.Tensor


@pytest.mark.parametrize(
    ("given", "change"),
    [
        ([[1], [2]], lambda given: given[1].append(3)),
        ((torch.zeros(2), [1]), lambda given: given[0].add_(1)),
        ({"a": {"b": [1]}}, lambda given: given["a"]["b"].clear()),
        ([torch.zeros(2)], lambda given: given[0].view(2, 1)[0].fill_(1)),
        (Pair([1], torch.zeros(2)), lambda given: given.x.mul_(0).sub_(1)),
        (Pair([1], torch.zeros(2)), lambda given: given.numbers.append(1)),
        (torch.zeros(3, 2), lambda given: given[1].fill_(1)),
        ([1, 2], lambda given: given.sort(reverse=True)),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: lambda *a: f(*a), functools.partial], ids=["plain", "star", "partial"])
def test_changes_deep_within_an_input_are_seen_however_it_is_taken(given, change, wrap):
    given = copy.deepcopy(given)
    came = attempt(lambda f: f(given), wrap(lambda given: [change(given)].clear()))
    assert came.error is None and came.changed in ({"given"}, {"argument 1"})


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
        (10**400, 2.0, "but 2 was expected"),
        pytest.param(10**5000, 2.0, "a number, but 2 was expected", id="5000 digits, float"),
        pytest.param(10**5000, 2, "a number, but 2 was expected", id="5000 digits"),
        (1j, 2.0, "1j, but 2 was expected"),
        (np.str_("3"), 3.0, "a string, but a number"),
        (np.array([1, 2]), [1, 2], "an array of NumPy, but a list of 2"),
        ([1, 2], np.array([1, 2]), "cannot be compared"),
        ((i for i in "ab"), ["a"], "a generator (a function with `yield`"),
        (len, 2, "something of type builtin"),
        (lambda: 1, 2, "a function, but a number"),
        (int, 2, "a class, but a number"),
        (torch.ones(2, device="meta"), torch.ones(2), "cannot be compared"),
        (np.bool_(True), False, "True, but False"),
    ],
)
def test_every_difference_is_told(got, want, says):
    assert says in difference(got, want)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (1.0 + 1e-9, 1.0),
        (1, 1.0),
        (1e-17, 0.0),
        (Fraction(1, 3), 1 / 3),
        (np.bool_(True), True),
        (np.array(2.0), 2.0),
        (np.float32(0.1), 0.1),
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


def test_objects_that_will_not_be_looked_at():
    class Odd(Exception):
        def __eq__(self, other):
            raise RuntimeError

        __str__ = __hash__ = __eq__

    assert "cannot be compared" in difference(Odd(), object()) and "a number was expected" in difference(Odd(), 1)
    assert told(Outcome(error=Odd()), Outcome(1), "") == "it raises Odd: its message cannot be read"


@pytest.mark.filterwarnings("error")
def test_a_coroutine_is_told_and_leaves_no_complaint():
    async def asked(x):
        return x

    came = attempt(lambda f: f(1), asked)
    assert "`async def` makes one" in told(came, Outcome(1), "")
    del came
    gc.collect()


def test_what_is_printed_to_may_be_closed():
    assert attempt(lambda f: f(1), lambda x: (print("a"), sys.stdout.close(), print("b"))).printed == "a\nb\n"


def test_patience_is_that_of_a_person():
    assert 5 <= checking.PATIENCE <= 15
