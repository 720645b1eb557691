"""One rank of numpy_test.py: the NumPy binding rejects invalid arguments, and a rejected call sends nothing."""
import os

import numpy

import espalier


def zeros(shape, dtype="f4"):
    return numpy.zeros(shape, dtype)


def expect_rejected(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert all(word in str(error) for word in words.split("|")), error
    else:
        raise AssertionError(f"{words}: the call was accepted")


comm = espalier.init_rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "127.0.0.1", int(os.environ["PORT"]),
                          options="timeout_s=30")
ones, n, rank = numpy.ones(6, "f4"), comm.size, comm.rank
comm.barrier()

# Sizes.
expect_rejected(ValueError, "out: got 2|expected 100000", comm.all_reduce, numpy.ones(100000, "f4"), zeros(2))
expect_rejected(ValueError, f"out: got 6|expected {6 * n}", comm.all_gather, ones, zeros(6))
expect_rejected(ValueError, f"array: got 6|expected {6 * n}", comm.reduce_scatter, ones, zeros(6))
expect_rejected(ValueError, "out: got 4|expected 6", comm.all_to_all, ones, zeros(4))
expect_rejected(ValueError, f"5 elements|{n} ranks", comm.all_to_all, zeros(5), zeros(5))
expect_rejected(ValueError, "out: got 5|expected 6", comm.reduce, ones, zeros(5), root=rank)
expect_rejected(ValueError, f"out: got 6|expected {6 * n}", comm.gather, ones, zeros(6), root=rank)
expect_rejected(ValueError, f"array: got 6|expected {6 * n}", comm.scatter, ones, zeros(6), root=rank)
# Element types.
expect_rejected(TypeError, "float64|float32", comm.all_reduce, ones, zeros(6, "f8"))
expect_rejected(TypeError, "float64|float32", comm.scatter, zeros(6 * n, "f8"), zeros(6), root=rank)
expect_rejected(TypeError, "float16|float32", comm.reduce, ones, zeros(6, "f2"), root=rank)
expect_rejected(TypeError, "float16|float32", comm.gather, ones, zeros(6 * n, "f2"), root=rank)
expect_rejected(TypeError, "complex128", comm.broadcast, zeros(6, "c16"))
expect_rejected(TypeError, ">f4|byte order", comm.all_reduce, zeros(6, ">f4"))
expect_rejected(TypeError, ">f4|byte order", comm.send, zeros(6, ">f4"), 1 - rank)
# Memory layout and writability.
table = zeros((4, 2))
expect_rejected(ValueError, "out: got a non-contiguous", comm.all_reduce, numpy.ones(4, "f4"), table[:, 0])
expect_rejected(ValueError, "array: got a non-contiguous", comm.recv, table[:, 0], 1 - rank)
constant = numpy.frombuffer(bytes(24), "f4")
expect_rejected(ValueError, "read-only", comm.broadcast, constant, root=1 - rank)
expect_rejected(ValueError, "read-only", comm.all_reduce, constant)
expect_rejected(ValueError, "read-only", comm.recv, constant, 1 - rank)
expect_rejected(TypeError, "list", comm.all_reduce, [1.0, 2.0])
expect_rejected(TypeError, "NoneType", comm.reduce, ones, root=rank)
# Integers and strings.
expect_rejected(ValueError, f"{2**40}|0 to {n - 1}", comm.broadcast, ones, root=2**40)
expect_rejected(ValueError, "peer: got -1", comm.send, ones, -1)
expect_rejected(TypeError, "1.5", comm.broadcast, ones, root=1.5)
expect_rejected(ValueError, "colour", comm.split, 2**32)
expect_rejected(ValueError, "mean|avg", comm.all_reduce, ones, op="mean")
expect_rejected(ValueError, "NUL", espalier.init, "timeout_s=3\0;transport=tcp")
expect_rejected(ValueError, "port", espalier.init_rank, 0, 1, "127.0.0.1", 2**32 + 5)

# The rejected calls sent nothing and wrote nothing.
assert (ones == 1).all() and (table == 0).all() and (constant == 0).all()
comm.broadcast(constant if rank == 0 else ones, root=0)  # the root's array may be read-only
assert (ones == 1).all() == (rank == 0), ones
ones[:] = rank + 1
total = zeros(6)
comm.reduce(ones, total if rank == 1 else None, root=1)
assert (total == (3 if rank == 1 else 0)).all(), total
gathered = zeros((n, 6))
comm.gather(ones, gathered if rank == 0 else None)
assert gathered[:, 0].tolist() == ([1, 2] if rank == 0 else [0, 0])
part = zeros(2)
comm.scatter(numpy.arange(4, dtype="f4") if rank == 0 else None, part)
assert part.tolist() == [2 * rank, 2 * rank + 1]
comm.all_to_all(numpy.array([rank, rank], "i8"), swapped := zeros(2, "i8"))
assert swapped.tolist() == [0, 1]

# A forked child does not have the library's threads, and must still exit.
work = comm.all_reduce(ones, wait=False) if rank == 0 else None
child = os.fork()
if child == 0:
    del work
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
if rank == 1:
    comm.all_reduce(ones)
else:
    work.wait()

# Shared memory must exist as long as any array in it.
shared = comm.allocate((2, 3))
shared[:] = rank
comm.all_reduce(shared)
row = shared[1]
del shared
comm.finalize()
row += 1
assert row.tolist() == [2, 2, 2], row
expect_rejected(espalier.Error, "usage", comm.barrier)
del row
assert espalier.__version__.count(".") == 2, espalier.__version__
print("rank", rank, "good")
