"""The emulator of the CUDA kernels itself: threads meet, exchange, vote, and are found where they would wait for ever."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.on_cpu import HERE, compiled

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


def run(library: Path, name: str, backwards: bool = False) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which the emulator may end."""
    code = f"import ctypes; x = ctypes.c_int(); of = ctypes.CDLL({str(library)!r}); of.set_order({int(backwards)}); "
    code += f"of.{name}(ctypes.byref(x)); print(x.value)"
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
