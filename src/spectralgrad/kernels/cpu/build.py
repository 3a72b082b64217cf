"""Compiles the native kernels of this folder into one library, with the C++ compiler that is there.

`hatch_build.py` does it when the package is installed, `make native` after a change; needs nothing but the standard library,
so that both can load this file alone. As a program: python build.py [LIBRARY [FLAG...]], by default beside this file.
"""

import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "native" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
# -O2 is up to four times slower. Square roots set no errno, no code looks at floating-point traps; vector.h fuses products.
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti",
         "-fvisibility=hidden", "-w"]  # fmt: skip
_MACHINES = {"AMD64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}
_LEVELS: dict[str, dict[str, str | None]] = {
    "x86_64": {"baseline": "x86-64", "avx2": "x86-64-v3", "avx512": "x86-64-v4"},
    "aarch64": {"baseline": None},
}
_OLDEST_GLIBC = (2, 17)  # that a tag can name
_SECONDS = 900.0  # one that takes longer hangs


class NotBuilt(Exception):
    """Why there is no library, in words."""


def digest(folder: Path = HERE) -> str:
    """Of the sources in ``folder``, and of how they are compiled: a library knows those that it was compiled from."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted([*folder.glob("*.h"), *folder.glob("*.cpp"), folder / "build.py"]):
        found.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return found.hexdigest()


def is_current(library: Path) -> bool:
    """Whether a library is whole and was compiled from the sources of this folder."""
    return library.exists() and is_whole(library) and digest().encode() in library.read_bytes()


def is_whole(library: Path) -> bool:
    """Whether a file has its end, if it is an ELF file: the system would map one that was cut, and die in the hole."""
    size = library.stat().st_size
    with library.open("rb") as file:
        header = file.read(64)
    if header[:5] != b"\x7fELF\x02" or len(header) < 64:  # of 64 bits
        return True
    (start,), (length, count) = struct.unpack_from("<Q", header, 0x28), struct.unpack_from("<HH", header, 0x3A)
    return bool(size >= start + length * count)  # the table of sections stands at the end


def platform_of(library: Path) -> str:
    """That of a wheel with a library that was compiled here; for Linux it names the oldest glibc with all it asks for."""
    machine = _MACHINES[platform.machine()]
    if sys.platform == "linux":
        asked = {
            tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_([0-9]+\.[0-9]+)", library.read_bytes())
        }
        return "manylinux_{}_{}_{}".format(*max(asked | {_OLDEST_GLIBC}), machine)
    if sys.platform == "darwin":
        return f"macosx_11_0_{'arm64' if machine == 'aarch64' else machine}"
    return "win_arm64" if machine == "aarch64" else "win_amd64"


def compiler() -> list[str]:
    """The command of a C++ compiler that knows vector extensions: $CXX, or the first that is found."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        words = name.split()
        if words and shutil.which(words[0]):
            return words
    raise NotBuilt("no C++ compiler found: neither $CXX nor g++, clang++, c++")


def build(library: Path, extra: tuple[str, ...] = ()) -> None:
    """Compile everything for this machine into ``library``, which is whole or not there.

    Raises:
        NotBuilt: no compiler, a machine that there are no kernels for, or what the compiler said.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise NotBuilt(f"there are no kernels for {platform.machine()}")
    command = [*compiler(), *FLAGS, *([] if sys.platform == "win32" else ["-fPIC"]), *extra]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def compiled(level: str) -> str:
            architecture, target = _LEVELS[machine][level], folder / f"{level}.o"
            flags = [f"-march={architecture}"] if architecture else []
            if level == "avx512":
                flags.append("-mprefer-vector-width=512")
            _run(*command, *flags, f"-DLEVEL={level}", "-c", HERE / "kernels.cpp", "-o", target)
            return str(target)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(compiled, _LEVELS[machine]))
        link = ["-shared", f'-DSOURCES="{digest()}"', HERE / "library.cpp", *objects]
        if sys.platform == "linux" and not extra:
            link += ["-s", "-nostdlib", "-lm", "-lc"]  # nothing of C++'s own library is used
        whole = folder / NAME
        _run(*command, *link, "-o", whole)
        library.parent.mkdir(parents=True, exist_ok=True)
        beside = library.with_name(f"{library.name}.{os.getpid()}")
        shutil.copyfile(whole, beside)
        beside.replace(library)  # at once: another process may have the old one loaded


def _run(*words: object) -> None:
    command = [str(word) for word in words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(str(error)) from None
    if done.returncode:
        raise NotBuilt(f"`{' '.join(command[:1])}` failed: {done.stderr.strip()[-2000:] or done.returncode}")


if __name__ == "__main__":
    target, more = Path(sys.argv[1]) if sys.argv[1:] else HERE / NAME, tuple(sys.argv[2:])
    try:
        if more or not is_current(target):
            build(target, more)
    except NotBuilt as reason:
        sys.exit(f"native kernels: {reason}")
