"""The thief reads while it is open, rests when it is told to, and is gone afterwards, whatever ended it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest
import torch

from tokenpace.measure import machine
from tokenpace.measure import thief as thief_module
from tokenpace.measure.thief import NoThief, shared, thief, threads

posix = pytest.mark.skipif(os.name != "posix", reason="signals and process groups as on POSIX")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """Nothing here asks how fast a thief is, so it may share a core."""
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setitem(thief_module.BUFFERS, "memory", lambda: 70 << 20)


@pytest.fixture
def no_numba(tmp_path, monkeypatch):
    """As on a machine without it; the process is also there sooner."""
    (tmp_path / "numba.py").write_text("raise ImportError('as if it were not there')\n")
    hide = tmp_path / "sitecustomize.py"
    hide.write_text("import importlib.util as u\nfound = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'numba' else found(name, *a)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def thieves(of: int | None = None) -> list[psutil.Process]:
    return [p for p in psutil.Process(of).children(recursive=True) if "tokenpace.measure.steal" in p.cmdline()]


def wait_for(condition):
    deadline = time.perf_counter() + 30
    while not condition():
        assert time.perf_counter() < deadline
        time.sleep(0.005)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# at work -------------------------------------------------------------------------------------------------------------


def steals(kind, cores):
    with thief(kind, cores) as t:
        assert len(thieves()) == 1
        t.wait()
        before = t.bytes
        t.go()
        time.sleep(0.05)
        t.wait()
        assert t.bytes > before and t.seconds > 0
        rests = t.bytes
        time.sleep(0.05)
        t.wait()
        assert t.bytes == rests
        t.go()
        time.sleep(0.05)
    assert not thieves() and t.bytes > rests and t.rate == t.bytes / t.seconds
    assert t.bytes % (16 << 10) == 0


@pytest.mark.parametrize("kind", ["memory", "compute"])
def test_it_reads_while_it_is_open_and_rests_when_told(kind):
    steals(kind, 1)


@pytest.mark.parametrize("kind", ["memory", "compute"])
def test_it_reads_without_numba_too_and_on_several_cores(kind, no_numba, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 3)
    steals(kind, 2)


def test_every_number_is_read_so_often():
    numbers = "np.arange(1000, dtype=np.float32)"
    code = f"import sys, numpy as np; from tokenpace.measure.steal import total; print(float(total({numbers}, 3)), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(3.0 * sum(range(1000))), "False"]


def test_the_thief_of_memory_goes_through_all_of_its_buffer():
    """Over its first part only, it would be read from a cache. Here it reads five pieces, of a buffer of three."""
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=True)
    first, second, last, *again = map(int, done.stdout.split())
    assert first == second == 32 << 20 and last == 6 << 20 and again == [first, second]


PIECES = """
from tokenpace.measure import steal
seen = []
steal.total = lambda piece, times: seen.append(piece.nbytes * times)
words = iter([("1", "go"), None, None, None, None, ("2", "end")])
class Words:
    def get(self, timeout):
        word = next(words)
        if word is None:
            raise steal.Empty
        return word
class Nobody:
    def __init__(self, **_): pass
    def start(self): pass
def leave(_):
    print(*seen[1:])
    raise SystemExit
steal.SimpleQueue, steal.Thread, steal.say, steal.os._exit = Words, Nobody, lambda *_: None, leave
steal.serve(70 << 20, 1)
"""


def test_an_answer_that_an_interrupt_left_unread_is_passed_over():
    with thief("compute") as t:
        for word in ("wait", "go", "wait", "go"):
            t._told += 1
            t._process.stdin.write(f"{t._told} {word}\n".encode())
        t.wait()
        t.go()
        t.wait()
        rests = t.bytes
        time.sleep(0.02)
        t.wait()
        assert t.bytes == rests


# gone afterwards -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, GeneratorExit])
def test_it_ends_with_whatever_ends_the_block(error):
    with pytest.raises(error), thief("compute"):
        (process,) = thieves()
        raise error
    assert gone(process.pid)


SCRIPT = """
import os, sys, time, psutil
from tokenpace.measure import machine, thief as module
from tokenpace.measure.thief import thief
machine.cores = lambda: 2
children = lambda: [p.pid for p in psutil.Process().children(recursive=True) if p.status() != "zombie"]
"""


@contextmanager
def script(code: str):
    """A program that opens a thief and says its number; in a group of its own, so that a signal to the group is not for us."""
    command = [sys.executable, "-c", SCRIPT + code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@posix
def test_it_ends_when_its_parent_is_killed():
    with script("with thief('memory'):\n    print(*children(), flush=True)\n    time.sleep(100)") as parent:
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
        wait_for(lambda: gone(pid))


@posix
def test_it_ends_when_its_parent_is_killed_though_a_fork_holds_the_pipe():
    code = """
with thief('compute') as t:
    fork = os.fork()
    fork and print(t._process.pid, fork, flush=True)
    time.sleep(100)
"""
    with script(code) as parent:
        pid, fork = map(int, parent.stdout.readline().split())
        parent.kill()
        wait_for(lambda: gone(pid))
        os.kill(fork, signal.SIGKILL)


@posix
def test_an_interrupt_is_for_the_parent_alone():
    code = """
with thief('compute') as t:
    try:
        print('open', flush=True)
        time.sleep(100)
    except KeyboardInterrupt:
        t.go()
        t.wait()
        print(len(children()))
print(children())
"""
    with script(code) as parent:
        assert parent.stdout.readline() == "open\n"
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.communicate(timeout=30) == ("1\n[]\n", "")


EVERYWHERE = """
import gc, warnings
warnings.simplefilter("ignore")
def run(stop):
    seen = 0
    def tracer(frame, event, arg):
        nonlocal seen
        if frame.f_code.co_filename == module.__file__:
            seen += 1
            if seen == stop:
                raise KeyboardInterrupt
            return tracer
    sys.settrace(tracer)
    try:
        with thief("compute") as t:
            t.wait()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return seen
for stop in range(1, run(0) + 1):
    run(stop)
    gc.collect()
    end = time.monotonic() + 20
    while children() and time.monotonic() < end:
        time.sleep(0.01)
    print(stop, *children(), flush=True)
"""


@posix
@pytest.mark.slow
def test_it_ends_wherever_its_parent_is_interrupted(no_numba):
    """At every line, and every call and return, of the parent's side."""
    with script(EVERYWHERE) as parent:
        out, error = parent.communicate(timeout=300)
    lines = out.splitlines()
    assert len(lines) > 50 and lines == [str(i) for i in range(1, len(lines) + 1)], error[-2000:]
    assert parent.returncode == 0, error[-2000:]


# refused -------------------------------------------------------------------------------------------------------------


def test_an_unknown_thief():
    with pytest.raises(ValueError, match="a thief takes memory or compute, not 'time'"), thief("time"):
        pass


@pytest.mark.parametrize("cores", [0, -1, 1.0, True, "1"])
def test_cores_that_are_none(cores):
    with pytest.raises(ValueError, match="cores must be a whole number of at least 1"), thief("compute", cores):
        pass


def test_no_thief_where_there_is_no_core_for_it(monkeypatch):
    with (
        pytest.raises(NoThief, match="needs 2 cores of its own beside the one it steals from, and this process may use 2 in all"),
        thief("compute", 2),
    ):
        pass
    monkeypatch.setattr(machine, "cores", lambda: 1)
    with pytest.raises(RuntimeError, match="it needs a core of its own beside the one it steals from, and this process may use 1 in all"), thief():
        pass
    assert not thieves()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks here")
def test_cores_are_those_that_this_process_may_use():
    code = "from importlib import reload\nreload(machine)\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\nwith thief('compute'):\n    pass"
    with script(code) as parent:
        assert "NoThief: no thief here: it needs a core of its own" in parent.communicate(timeout=30)[1]


def test_no_thief_where_there_is_no_memory(monkeypatch):
    def full():
        raise MemoryError("10 MB are free: close something")

    monkeypatch.setitem(thief_module.BUFFERS, "memory", full)
    with pytest.raises(NoThief, match="no thief of memory here: 10 MB are free: close something"), thief("memory"):
        pass


def test_no_thief_where_no_process_can_be_started(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NoThief, match="no process can be started: .*No such file"), thief("compute"):
        pass


def test_a_process_that_fails_says_its_last_words(monkeypatch, tmp_path):
    package = tmp_path / "tokenpace" / "measure"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "steal.py").write_text("print('ready?')\nraise MemoryError('there is no room')\n")
    monkeypatch.setattr(thief_module, "PACKAGES", tmp_path)
    with pytest.raises(NoThief, match="^the thief of compute did not start: MemoryError: there is no room$"), thief("compute"):
        pass


@posix
def test_a_thief_that_is_killed_is_missed():
    with pytest.raises(NoThief, match="the thief of compute ended before it was told to wait: exit status -9"), thief("compute") as t:
        t._process.kill()
        t.wait()
    with pytest.raises(NoThief, match="before it was told to end"), thief("compute") as t:
        t._process.kill()
    with pytest.raises(ZeroDivisionError), thief("compute") as t:  # but it hides nothing else
        t._process.kill()
        _ = 1 / 0


# cores and threads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "physical", "mine", "its"), [(1, 1, 1, 0), (2, 2, 1, 1), (2, 1, 1, 1), (3, 3, 2, 1), (4, 2, 1, 1), (8, 8, 4, 4), (16, 8, 4, 4)]
)
def test_cores_are_shared(cores, physical, mine, its):
    assert shared(cores, physical) == (mine, its)


def test_threads_are_set_for_both_and_put_back():
    numba = pytest.importorskip("numba")
    from tokenpace.measure.probe import roof_now

    torch.set_num_threads(2)
    most = numba.config.NUMBA_NUM_THREADS
    numba.set_num_threads(most)
    try:
        with pytest.raises(KeyboardInterrupt), threads(1):
            assert (torch.get_num_threads(), numba.get_num_threads()) == (1, 1)
            roof_now(0)
            assert torch.get_num_threads() == 1
            raise KeyboardInterrupt
        assert (torch.get_num_threads(), numba.get_num_threads()) == (2, most)
        with threads(1000):
            assert numba.get_num_threads() == most
        assert (torch.get_num_threads(), numba.get_num_threads()) == (2, most)
    finally:
        torch.set_num_threads(1)


def test_threads_that_start_numba_leave_torch_as_it_was():
    """In a fresh process, where Numba's threads are not there yet: starting them may set PyTorch's number."""
    pytest.importorskip("numba")
    code = """
import torch
torch.set_num_threads(2)
with module.threads(1):
    from tokenpace.measure.probe import roof_now
    roof_now(0)
    inside = torch.get_num_threads()
print(inside, torch.get_num_threads())
"""
    with script(code) as parent:
        assert parent.communicate(timeout=60)[0] == "1 2\n"
