"""The tests marked `in_interpreter`, of all files in one process: to import torch takes longer than most of them."""

from pathlib import Path

from support.triton_kernels import each_speed, run_in_interpreter, starts_interpreter

TESTS = Path(__file__).parents[1]
FILES = sorted(str(path) for path in TESTS.rglob("test_*.py") if "\n@in_interpreter\n" in path.read_text(encoding="utf-8"))


@each_speed
@starts_interpreter
def test_in_the_interpreter(marked: str) -> None:
    run_in_interpreter(FILES, marked)


def test_all_files_are_found() -> None:
    assert [Path(file).stem for file in FILES] == [
        *("test_affine", "test_moments", "test_whitening", "test_whitening_ops", "test_route"),
    ]
