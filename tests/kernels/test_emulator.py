"""The emulator of the CUDA kernels itself: threads meet, exchange and vote; that they wait for ever, or race, is found."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.on_cpu import HERE, compiled

RACES = "of.races(ctypes.byref(ctypes.c_char_p()))"
KERNELS = """
#include "emulator.h"
extern "C" void meet(int* wrong) {
    launch(2, 96, 0, [=] {
        for (int k = 0; k < 5; ++k) {
            const int lane = threadIdx.x % 32;
            __syncthreads();
            *wrong += __shfl_xor_sync(0, (int)threadIdx.x, 1) != (threadIdx.x ^ 1);
            *wrong += __ballot_sync(0, lane < k) != (1u << k) - 1;
            *wrong += __syncthreads_or(threadIdx.x == 70 && k == 3) != (k == 3);
        }
        if (threadIdx.x == 95) *wrong += 1000;
    });
}
extern "C" void reach(int* wrong) {
    launch(6, 64, 64 * sizeof(int), [=] {
        SHARED(bytes);
        int* own = reinterpret_cast<int*>(bytes);
        const unsigned block = blockIdx.x % 3, next = (block + 1) % 3;
        cluster_sync();
        in_block(own, next)[threadIdx.x] = 100 * block + threadIdx.x;
        cluster_sync();
        *wrong += own[threadIdx.x] != 100 * ((block + 2) % 3) + threadIdx.x;
        if (blockIdx.x == 5 && threadIdx.x == 63) *wrong += 1000;
    }, 3);
}
extern "C" void first_to_come(int* first) {
    launch(2, 32, 0, [=] {
        if (*first == 0) *first = 1 + 100 * blockIdx.x + threadIdx.x;
        cluster_sync();
    }, 2);
}
extern "C" void wait_for_a_block(int*) {
    launch(2, 32, 0, [=] {
        if (blockIdx.x == 0) cluster_sync(); else __syncthreads();
    }, 2);
}
extern "C" void wait_for_another_group(int*) {
    launch(1, 32, 0, [=] {
        if (threadIdx.x == 0) __syncthreads(); else __syncwarp();
    });
}
extern "C" void orderly(int* wrong) {
    int* count = wrong + 1;
    launch(2, 64, 64 * sizeof(int), [=] {
        SHARED(bytes);
        int* own = reinterpret_cast<int*>(bytes);
        own[threadIdx.x] = threadIdx.x;
        __syncwarp();
        int sum = own[threadIdx.x ^ 1];
        __syncthreads();
        own[63 - threadIdx.x] = sum;
        atomicAdd(count, 1);
    });
}
extern "C" void without_a_barrier(int*) {
    launch(1, 64, 64 * sizeof(int), [=] {
        SHARED(bytes);
        int* own = reinterpret_cast<int*>(bytes);
        own[threadIdx.x] = threadIdx.x;
        __syncwarp();
        own[threadIdx.x] += own[63 - threadIdx.x];
    });
}
extern "C" void behind_a_shuffle(int*) {
    launch(1, 32, 32 * sizeof(int), [=] {
        SHARED(bytes);
        int* own = reinterpret_cast<int*>(bytes);
        own[threadIdx.x] = threadIdx.x;
        if (__shfl_xor_sync(0, (int)threadIdx.x, 1) + own[threadIdx.x ^ 1] < 0) own[0] = 1;
    });
}
extern "C" void beyond_the_end(int* x) {
    launch(1, 32, 32 * sizeof(int), [=] {
        SHARED(bytes);
        int* own = reinterpret_cast<int*>(bytes);
        own[threadIdx.x] = threadIdx.x == 7 ? x[2] : 0;
    });
}
extern "C" void beyond_shared_memory(int* x) {
    launch(1, 32, 31 * sizeof(int), [=] {
        SHARED(bytes);
        reinterpret_cast<int*>(bytes)[threadIdx.x] = 0;
    });
}
extern "C" void of_two_blocks(int* wrong) {
    launch(2, 32, 0, [=] { if (threadIdx.x == blockIdx.x) *wrong = 1; });
}
extern "C" void before_it_is_read(int*) {
    launch(1, 64, sizeof(int), [=] {
        SHARED(bytes);
        int* own = reinterpret_cast<int*>(bytes);
        if (threadIdx.x == 0) *own = 0;
        __syncthreads();
        if (*own == 5) __syncwarp();
        if (threadIdx.x == 63) *own = 1;
    });
}
extern "C" void part(int*) {
    launch(1, 64, 0, [=] {
        if (threadIdx.x < 40)
            __syncthreads();
        else
            __syncthreads();
    });
}
extern "C" void leave(int*) {
    launch(1, 64, 0, [=] {
        if (threadIdx.x != 3) __syncwarp();
    });
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("needs g++ to compile the emulator")
    folder = tmp_path_factory.mktemp("emulator")
    (folder / "kernels.cpp").write_text(KERNELS)
    return compiled(folder / "kernels.so", "-shared", f"-I{HERE}", str(folder / "kernels.cpp"), str(HERE / "emulator.cpp"))


@pytest.fixture(scope="module")
def watched(library: Path) -> Path:
    """The same, with every access to memory looked at."""
    folder = library.parent
    kernels = compiled(folder / "kernels.o", "-c", "-fsanitize=thread", f"-I{HERE}", str(folder / "kernels.cpp"))
    sources = (HERE / f"{name}.cpp" for name in ("emulator", "races"))
    return compiled(folder / "watched.so", "-shared", str(kernels), *map(str, sources))


def run(library: Path, name: str, backwards: bool = False, then: str = "x[0]") -> subprocess.CompletedProcess[str]:
    """In a process of its own, which the emulator may end."""
    code = f"import ctypes; x = (ctypes.c_int * 2)(); of = ctypes.CDLL({str(library)!r}); of.set_order({int(backwards)}); "
    code += "of.give(x, 8); " if then == RACES else ""
    code += f"of.{name}(x); print({then})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_threads_meet_exchange_and_vote(library: Path) -> None:
    done = run(library, "meet")
    assert (done.returncode, done.stdout) == (0, "2000\n"), done.stderr  # 1000 of each block's last thread, no error


@pytest.mark.parametrize("backwards", [False, True])
def test_blocks_of_a_cluster_reach_each_other(backwards: bool, library: Path) -> None:
    done = run(library, "reach", backwards)
    assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr
    assert run(library, "first_to_come", backwards).stdout == ("132\n" if backwards else "1\n")


@pytest.mark.parametrize("name", ["part", "leave", "wait_for_a_block", "wait_for_another_group"])
def test_threads_that_would_wait_for_ever_are_found(name: str, library: Path) -> None:
    done = run(library, name)
    assert done.returncode != 0
    assert "different barriers" in done.stderr


@pytest.mark.parametrize("name", ["beyond_the_end", "beyond_shared_memory"])
def test_what_lies_beyond_is_found(name: str, watched: Path) -> None:
    assert int(run(watched, name, then=RACES).stdout) == 1


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", ["without_a_barrier", "behind_a_shuffle", "of_two_blocks", "before_it_is_read"])
def test_races_are_found(name: str, backwards: bool, watched: Path) -> None:
    assert int(run(watched, name, backwards, RACES).stdout) > 0


@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_in_order_is_no_race(backwards: bool, watched: Path) -> None:
    assert int(run(watched, "orderly", backwards, RACES).stdout) == 0
