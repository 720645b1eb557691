"""All-reduces a NumPy array. Start it as several ranks, for example:

    for r in 0 1; do RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python3 all_reduce.py & done; wait
"""
import numpy

import espalier

with espalier.init("timeout_s=30") as comm:
    gradient = numpy.arange(100003, dtype=numpy.float32) % 100 + comm.rank
    mean = numpy.empty_like(gradient)
    work = comm.all_reduce(gradient, mean, op="avg", wait=False)
    comm.all_reduce(gradient)
    work.wait()
    expected = comm.size * (numpy.arange(100003, dtype=numpy.float32) % 100) + comm.size * (comm.size - 1) // 2
    assert numpy.array_equal(gradient, expected), (gradient, expected)
    assert numpy.allclose(mean * comm.size, expected), (mean, expected)

    ranks = numpy.empty(comm.size, dtype=numpy.int64)
    comm.all_gather(numpy.array([comm.rank]), ranks)
    assert ranks.tolist() == list(range(comm.size)), ranks

    shared = comm.allocate(1000, "float64")
    shared[:] = comm.rank
    comm.all_reduce(shared, op="max")
    assert (shared == comm.size - 1).all(), shared
    del shared
    print(f"rank {comm.rank} of {comm.size}: {gradient.size} elements summed")
