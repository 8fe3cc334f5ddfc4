"""The table of C functions that `collectives._native` offers other modules, called through ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

OK, BAD_ARGUMENT, MISMATCHED, REFUSED, ABORTED = 0, 1, 2, 3, 6
ALL_REDUCE, BROADCAST, SUM, MAX, FLOAT32, AUTOMATIC = 0, 3, 0, 3, 0, 0
Interrupted = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Call(ctypes.Structure):
    _fields_ = [
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("root", ctypes.c_uint32),
        ("collective", ctypes.c_uint8),
        ("op", ctypes.c_uint8),
        ("dtype", ctypes.c_uint8),
        ("algorithm", ctypes.c_uint8),
        ("timeout", ctypes.c_double),
        ("factor", ctypes.c_double),
        ("send_counts", ctypes.POINTER(ctypes.c_uint64)),
        ("recv_counts", ctypes.POINTER(ctypes.c_uint64)),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dims", ctypes.c_uint32),
    ]


class Message(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("timeout", ctypes.c_double),
        ("peer", ctypes.c_int32),
        ("tag", ctypes.c_uint32),
        ("dtype", ctypes.c_uint8),
    ]


Done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)


def function(result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)


class Table(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        (
            "create",
            function(
                ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_double, Interrupted, ctypes.c_void_p
            ),
        ),
        ("announcement", function(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)),
        ("connect", function(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)),
        ("run", function(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Call))),
        ("refuse", function(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint8, ctypes.c_char_p)),
        ("abort", function(None, ctypes.c_void_p)),
        ("close", function(None, ctypes.c_void_p)),
        ("destroy", function(None, ctypes.c_void_p)),
        ("healthy", function(ctypes.c_int, ctypes.c_void_p)),
        (
            "last_error",
            function(
                ctypes.c_size_t,
                ctypes.POINTER(ctypes.c_char_p),
                ctypes.POINTER(ctypes.c_uint64),
                ctypes.POINTER(ctypes.c_int),
                ctypes.c_size_t,
            ),
        ),
        ("set_timeout", function(None, ctypes.c_void_p, ctypes.c_double)),
        ("epoch", function(ctypes.c_uint64, ctypes.c_void_p)),
        ("send", function(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Message))),
        ("recv", function(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Message))),
        (
            "post_send",
            function(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Message), Done, ctypes.c_void_p),
        ),
        (
            "post_recv",
            function(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Message), Done, ctypes.c_void_p),
        ),
        ("wait", function(ctypes.c_int, ctypes.c_void_p, ctypes.c_double)),
        ("finished", function(ctypes.c_int, ctypes.c_void_p)),
        ("source", function(ctypes.c_int32, ctypes.c_void_p)),
        ("release", function(None, ctypes.c_void_p)),
        ("allocate", function(ctypes.c_void_p, ctypes.c_size_t)),
        ("give_back", function(None, ctypes.c_void_p)),
    ]


def table() -> Table:
    from collectives import _native

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get(_native.table(), b"collectives._native.table")
    return Table.from_address(address)


def run(
    functions: Table, handle: int, x: np.ndarray[Any, Any], op: int = SUM, count: int | None = None
) -> int:
    address = x.ctypes.data
    call = Call(address, address, x.size if count is None else count, 0, ALL_REDUCE, op, FLOAT32, AUTOMATIC)
    return int(functions.run(handle, ctypes.byref(call)))


def last_error(functions: Table) -> tuple[str, int, list[int]]:
    message, epoch, ranks = ctypes.c_char_p(), ctypes.c_uint64(), (ctypes.c_int * 16)()
    found = functions.last_error(ctypes.byref(message), ctypes.byref(epoch), ranks, 16)
    return (message.value or b"").decode(), epoch.value, list(ranks[:found])


def test_version_and_size() -> None:
    functions = table()
    assert functions.version == 2
    assert functions.size == ctypes.sizeof(Table)


def test_a_wrong_name_is_refused() -> None:
    from collectives import _native

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    with pytest.raises(ValueError):
        get(_native.table(), b"collectives._native.other")


def life_of_a_communicator(comm: Any) -> None:
    """Create, connect, call, mismatch, refuse, abort and destroy, all through the table."""
    functions, rank, world = table(), comm.rank, comm.world_size
    handle = functions.create(rank, world, 20.0, Interrupted(), None)
    assert handle
    size = functions.announcement(handle, None, 0)
    mine = np.zeros(size, np.uint8)
    assert functions.announcement(handle, mine.ctypes.data, size) == size
    everyone = comm.all_gather(mine)
    assert functions.connect(handle, everyone.ctypes.data, everyone.nbytes) == OK, last_error(functions)

    for count in (1, 1000, 300_000):
        x = np.full(count, rank + 1, np.float32)
        assert run(functions, handle, x) == OK
        assert (x == world * (world + 1) // 2).all()
    assert functions.healthy(handle) == 1

    x = np.zeros(8, np.float32)
    assert run(functions, handle, x, MAX if rank == 0 else SUM) == MISMATCHED
    text, epoch, culprits = last_error(functions)
    assert "max" in text and "sum" in text and epoch == 4 and 0 in culprits, (text, epoch, culprits)

    if rank == 1:
        assert functions.refuse(handle, ALL_REDUCE, b"no such thing") == OK
    else:
        assert run(functions, handle, x) == REFUSED
        text, _, culprits = last_error(functions)
        assert "no such thing" in text and culprits == [1], (text, culprits)
    assert run(functions, handle, x, op=200) == BAD_ARGUMENT
    assert run(functions, handle, x) == OK

    comm.barrier()
    if rank == 0:
        functions.abort(handle)
    comm.barrier()
    assert run(functions, handle, x) == ABORTED and functions.healthy(handle) == 0
    functions.close(handle)
    functions.destroy(handle)


@pytest.mark.parametrize("world", [2, 3])
def test_a_communicator_through_the_table(pools: Any, world: int) -> None:
    pools(world).run(life_of_a_communicator, limit=60)


def handle_of_a_python_communicator(comm: Any) -> None:
    from collectives import _native

    x = np.full(100, comm.rank, np.float32)
    assert run(table(), _native.handle(comm), x) == OK
    assert (x == comm.world_size * (comm.world_size - 1) // 2).all()
    assert comm.last_receipt().count == 100


def test_the_handle_of_a_communicator(pools: Any) -> None:
    pools(2).run(handle_of_a_python_communicator)
