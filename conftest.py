"""Tests marked `cuda` are skipped where torch finds no GPU (`make test-gpu` runs them), and no test may take for ever.

Of a test marked `covering(2)` those parameters are quick that together hold each pair of values; the rest is slow.

A test that is over its time ends its process with the stacks of all threads on stderr, whatever it hangs in: Python, C or a
destructor. With several workers (-n) the others go on, a new one takes its place, and the test is a failure.
"""

import contextlib
import faulthandler
import gc
import os
import sys
from collections.abc import Generator
from typing import TextIO

# Some virtual machines announce AMX and then refuse it: torch's bfloat16 products die of an illegal instruction there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Each worker has as many threads as there are cores: where they spin as they wait, they take the other worker's time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's and SciPy's threads spin too, for references only

# torch's compiler imports setuptools, which warns, and fails, where something has imported Python's own distutils before.
with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401

import pytest
import torch

from support.lanes import NATIVE
from support.marks import covering

# Files that need what a system has not, with the reason. (A single test says so itself, by skipif.)
ELSEWHERE = {
    "win32": {
        "tests/nn/test_distributed.py": "ranks that are killed by a signal",
        "tests/test_fuzz.py": "an interrupt from another process",
        "tests/test_time_limit.py": "a process that ends itself by faulthandler",
        "lab/tests/records/test_store.py": "locks that outlive a kill by a signal",
        "lab/tests/training/": "trainings that are killed by a signal",
        "lab/tests/sweep/": "worker processes that are interrupted",
        "lab/tests/cli/": "commands that are interrupted",
        "lab/tests/data/test_folder.py": "decoding processes that are killed",
    }
}
# In the names of tests that take seconds (compilers, tracers, other processes) or look at the selection: not for `--fast`.
LONG = (
    "compile",
    "make_fx",
    "export",
    "onnx",
    "interpret",
    "distributed",
    "example",
    "test_fuzz.py",
    "test_main.py",
    "test_covering",
)
SECONDS, SLOW_SECONDS = 300.0, 1800.0  # of one test, with fixtures; of one with the marker slow
_stderr = pytest.StashKey[TextIO]()


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the library of native kernels for the CPU is not there, or SPECTRALGRAD_CPU is off."""
    for name in NATIVE:
        monkeypatch.setattr(f"spectralgrad.kernels.cpu.{name}.takes", lambda *_: False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--time-limit", type=float, metavar="SECONDS", help="of one test, instead of 300, and 1800 for slow ones"
    )
    parser.addoption("--fast", action="store_true", help="one test of each function that tests, and no long one")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.fdopen(os.dup(2), "w")  # the real one: during a test it is captured


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_stderr].close()


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_slow(items)
    if config.getoption("--fast"):
        kept = one_of_each(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix() if item.path.is_relative_to(config.rootpath) else ""
        for place, needed in ELSEWHERE.get(sys.platform, {}).items():
            if path.startswith(place):
                item.add_marker(pytest.mark.skip(reason=f"not on {sys.platform}: {needed}"))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not among modules and 17,000 tests: that takes a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> Generator[None]:
    """Matrices are small here: threads only cost time. What needs several says so itself."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def fresh_compiler() -> Generator[None]:
    """What a test compiled is forgotten after it: torch gives up on a function that was compiled too often."""
    yield
    torch.compiler.reset()


def one_of_each(items: list[pytest.Item]) -> set[pytest.Item]:
    """Of the tests of each function one, of the second function the second, and so on: together they pass every value by."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        marked = any(item.get_closest_marker(name) for name in ("slow", "cuda"))
        if not marked and not any(word in item.nodeid for word in LONG):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return {tests[i % len(tests)] for i, tests in enumerate(functions.values())}


def point(test: pytest.Function) -> dict[str, tuple[int, ...]]:
    """Where a test stands in the product of its parameters; those that one `parametrize` names together are one."""
    params = test.callspec.params
    together = [mark.args[0] for mark in test.iter_markers("parametrize")]
    names = [name.replace(" ", "").split(",") if isinstance(name, str) else name for name in together]
    names += [[name] for name in params if not any(name in listed for listed in names)]  # of fixtures
    return {",".join(listed): tuple(id(params[name]) for name in listed) for listed in names}


def mark_slow(items: list[pytest.Item]) -> None:
    """What `covering` leaves out."""
    grids: dict[tuple[pytest.Item, str, int], list[pytest.Function]] = {}
    for item in items:
        mark = item.get_closest_marker("covering")
        if mark and isinstance(item, pytest.Function) and not item.get_closest_marker("slow"):
            grids.setdefault((item.parent, item.originalname, *mark.args), []).append(item)
    for (_, _, strength), tests in grids.items():
        quick = covering([point(test) for test in tests], strength)
        for i, test in enumerate(tests):
            if i not in quick:
                test.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    usual = SLOW_SECONDS if item.get_closest_marker("slow") else SECONDS
    seconds = item.config.getoption("--time-limit") or usual
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
