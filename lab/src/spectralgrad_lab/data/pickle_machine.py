"""The few instructions of a pickle that a CIFAR file needs, carried out on values of our own.

A pickle is a program: it may import, call and change what it likes, and Python's reader obeys, also where the names it may
ask for are few: BUILD sets attributes of whatever a name stands for. So none of that reader runs here. `pickletools` splits
the bytes into instructions; numbers, texts, lists, tuples and dictionaries are made as they say; names are constants without
behaviour; and of all calls three are known: an empty array of bytes, the type of bytes, and the bytes of a text.
"""

import math
import pickletools
from enum import Enum
from typing import Any

import torch
from torch import Tensor

MOST_DIGITS = 19  # of a whole number written in decimals: 64 bits


class Refused(ValueError):
    """What the pickle asks for, in words."""


class Name(Enum):
    """What a pickle of numpy's may name."""

    RECONSTRUCT = "_reconstruct"
    NDARRAY = "ndarray"
    DTYPE = "dtype"
    ENCODE = "encode"


NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): Name.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): Name.RECONSTRUCT,
    ("numpy", "ndarray"): Name.NDARRAY,
    ("numpy", "dtype"): Name.DTYPE,
    ("_codecs", "encode"): Name.ENCODE,
}


class ByteType:
    """numpy's dtype u1."""


class ByteArray:
    """An array of bytes; empty until its state comes."""

    def __init__(self) -> None:
        self.tensor = torch.empty(0, dtype=torch.uint8)


class _Mark:
    """Where a tuple, list or dictionary begins on the stack."""


_MARK = _Mark()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = ("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
_OLD_TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING")  # of Python 2: bytes, which pickletools gives as latin-1
_TEXTS = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def run(content: bytes) -> Any:
    """The value of a pickle.

    Raises:
        ValueError, IndexError, KeyError, UnicodeError, OverflowError: damaged, or another instruction, name or call than a
            CIFAR file needs; nothing was called or changed.
    """
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "STOP":
            return machine.pop()
        machine.step(opcode.name, argument)
    raise Refused("it has no end")


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        push = self.stack.append
        if name in _TEXTS:
            push(argument)
        elif name in _OLD_TEXTS:
            push(argument.encode("latin1") if isinstance(argument, str) else argument)
        elif name in _NUMBERS:
            push(argument)
        elif name in _CONSTANTS:
            push(_CONSTANTS[name])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            push(self.memo[int(argument)])
        elif name in _TUPLES:
            push(tuple(reversed([self.pop() for _ in range(_TUPLES[name])])))
        elif name not in ("PROTO", "FRAME"):
            self._build(name, argument)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise Refused("its stack is not in order")
        return value

    def _build(self, name: str, argument: Any) -> None:
        """What changes or makes something out of the stack."""
        push = self.stack.append
        if name == "MARK":
            push(_MARK)
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            push([] if name == "EMPTY_LIST" else {})
        elif name == "TUPLE":
            push(tuple(self._since_mark()))
        elif name == "LIST":
            push(self._since_mark())
        elif name == "DICT":
            items = self._since_mark()
            push({})
            self._set(items)
        elif name in ("APPEND", "APPENDS"):
            items = [self.pop()] if name == "APPEND" else self._since_mark()
            self._top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            self._set([self.pop(), self.pop()][::-1] if name == "SETITEM" else self._since_mark())
        elif name == "GLOBAL":
            push(_named(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            asked = [self.pop(), self.pop()]
            push(_named(asked[1], asked[0]))
        elif name == "REDUCE":
            arguments = self.pop()
            push(_called(self.pop(), arguments))
        elif name == "BUILD":
            state = self.pop()
            _fill(self.stack[-1], state)
        else:
            raise Refused(f"it holds the instruction {name}, which no CIFAR file needs")

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise Refused("its stack is not in order")
        return self.stack[-1]

    def _since_mark(self) -> list[Any]:
        items = []
        while self.stack[-1] is not _MARK:
            items.append(self.stack.pop())
        self.stack.pop()
        return items[::-1]

    def _set(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        if len(keys) != len(values) or not all(type(key) in (bytes, str) for key in keys):  # nothing else is ever hashed
            raise Refused("a key of a dictionary must be a text")
        self._top(dict).update(zip(keys, values, strict=True))


def _named(module: Any, name: Any) -> Name:
    if not (isinstance(module, str) and isinstance(name, str)) or (module, name) not in NAMES:
        raise Refused(f"it asks for {str(module)[:40]}.{str(name)[:40]}, which no CIFAR file needs")
    return NAMES[module, name]


def _called(function: Any, arguments: Any) -> Any:
    match function, arguments:
        case Name.RECONSTRUCT, (Name.NDARRAY, (0,), b"b" | "b"):
            return ByteArray()
        case Name.DTYPE, (b"u1" | "u1", *_):
            return ByteType()
        case Name.DTYPE, _:
            raise Refused("an array of other numbers; only bytes (u1) belong there")
        case Name.ENCODE, (str(text), "latin1" | "latin-1"):
            return text.encode("latin1")
    raise Refused("it calls what no CIFAR file calls")


def _fill(found: Any, state: Any) -> None:
    if isinstance(found, ByteType):
        return  # byte order and the like, without meaning for bytes
    match found, state:
        case ByteArray(), (int(), tuple(shape), ByteType(), is_fortran, bytes(raw)):
            found.tensor = _array(shape, is_fortran, raw)
        case _:
            raise Refused("an array that is not one of bytes")


def _array(shape: tuple[Any, ...], is_fortran: Any, raw: bytes) -> Tensor:
    whole = all(type(n) is int and 0 <= n < 10**MOST_DIGITS for n in shape)
    if not whole or len(shape) > 4 or math.prod(shape) != len(raw) or is_fortran:
        raise Refused(f"an array of another shape than its {len(raw)} bytes have")
    if not raw:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(shape)
