"""One rank of torch_test.py: checks the result of every call of the backend, then DistributedDataParallel."""
import datetime
import faulthandler
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import espalier.torch

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def values(r, count=1003, dtype=torch.float32):
    return (torch.arange(count, dtype=torch.float64) % 13 + r).to(dtype)


def same(got, expected):
    assert torch.equal(got, expected), (rank, got, expected)


def total(count=1003, dtype=torch.float32):
    return sum(values(r, count, dtype) for r in range(size))


def collectives():
    for dtype in (torch.float64, torch.float32, torch.int64, torch.int32, torch.uint8, torch.bfloat16, torch.float16):
        x = values(rank, 13, dtype)
        dist.all_reduce(x)
        same(x, total(13, dtype))
    for op, expected in ((dist.ReduceOp.MAX, values(size - 1)), (dist.ReduceOp.MIN, values(0)),
                         (dist.ReduceOp.AVG, total() / size)):
        x = values(rank)
        dist.all_reduce(x, op=op)
        torch.testing.assert_close(x, expected)

    x = values(rank)
    dist.broadcast(x, src=size - 1)
    same(x, values(size - 1))
    flags = torch.tensor([rank == 1, True])
    dist.broadcast(flags, src=0)
    same(flags, torch.tensor([size == 0, True]))

    x = values(rank)
    dist.reduce(x, dst=1)
    if rank == 1:
        same(x, total())

    parts = [torch.empty(1003) for _ in range(size)]
    dist.all_gather(parts, values(rank))
    for r, part in enumerate(parts):
        same(part, values(r))
    flat = torch.empty(size * 5)
    dist.all_gather_into_tensor(flat, values(rank, 5))
    same(flat, torch.cat([values(r, 5) for r in range(size)]))

    mine = torch.empty(7)
    dist.reduce_scatter(mine, [values(rank, 7) * (r + 1) for r in range(size)])
    same(mine, total(7) * (rank + 1))
    dist.reduce_scatter_tensor(mine, values(rank, 7 * size))
    same(mine, total(7 * size)[7 * rank:7 * rank + 7])

    gathered = [torch.empty(3) for _ in range(size)] if rank == 0 else None
    dist.gather(values(rank, 3), gathered, dst=0)
    if rank == 0:
        same(torch.stack(gathered), torch.stack([values(r, 3) for r in range(size)]))
    part = torch.empty(4)
    dist.scatter(part, [values(10 * r, 4) for r in range(size)] if rank == 1 else None, src=1)
    same(part, values(10 * rank, 4))

    outs = [torch.empty(r + 1 + rank) for r in range(size)]
    dist.all_to_all(outs, [values(rank, r + 1 + rank) for r in range(size)])
    for r, out in enumerate(outs):
        same(out, values(r, r + 1 + rank))
    out = torch.empty(2 * size, 3)
    dist.all_to_all_single(out, values(rank, 6 * size).view(2 * size, 3))
    same(out, torch.cat([values(r, 6 * size).view(2 * size, 3)[2 * rank:2 * rank + 2] for r in range(size)]))
    # rank r sends r + 1 rows to each rank
    out = torch.empty(sum(range(1, size + 1)), 2)
    dist.all_to_all_single(out, torch.full(((rank + 1) * size, 2), float(rank)), list(range(1, size + 1)),
                           [rank + 1] * size)
    same(out[:, 1], torch.cat([torch.full((r + 1,), float(r)) for r in range(size)]))

    several = [values(rank, 3), values(rank, 5).view(5, 1)]
    dist.all_reduce_coalesced(several)
    same(several[1].view(-1), total(5))
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert [o["rank"] for o in objects] == list(range(size)), objects
    dist.barrier()


def strided():
    table = torch.zeros(6, 4)
    table[:, 1] = rank
    dist.all_reduce(table[:, 1])
    same(table[:, 1], torch.full((6,), float(sum(range(size)))))
    same(table[:, 0], torch.zeros(6))
    parameter = nn.Parameter(torch.full((3, 2), float(rank)).t())  # a leaf tensor that requires gradients
    assert not parameter.is_contiguous()
    dist.broadcast(parameter, src=size - 1)
    same(parameter.detach(), torch.full((2, 3), float(size - 1)))
    if size > 1 and rank < 2:
        sent = dist.isend(parameter, 1 - rank)
        dist.recv(parameter, 1 - rank)
        sent.wait()


def asynchronous():
    tensors = [values(rank) for _ in range(8)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    futures = [work.get_future() for work in works[::2]]
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() and work.is_success() for work in works)
    for future in futures:
        same(future.wait()[0], total())
    doubled = dist.all_reduce(tensors[0].zero_(), async_op=True).get_future().then(lambda f: f.value()[0] + 1)
    same(doubled.wait(), torch.ones(1003))
    for _ in range(1500):  # these calls are never waited for; they must not accumulate
        dist.all_reduce(tensors[1], op=dist.ReduceOp.MAX, async_op=True)
    dist.barrier()


def messages():
    ahead, behind = (rank + 1) % size, (rank - 1) % size
    big = 1 << 20  # larger than the send buffer of any transport
    out, got = torch.full((big,), float(rank)), torch.empty(big)
    sent = dist.isend(out, ahead)  # every rank sends first
    dist.recv(got, behind)
    sent.wait()
    same(got, torch.full((big,), float(behind)))
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, ahead), dist.P2POp(dist.isend, out, behind)])
    for work in works:
        work.wait()
    same(got, torch.full((big,), float(ahead)))
    if rank == 0:  # messages must arrive in the order in which they were sent
        for i in range(5):
            dist.send(torch.tensor([i]), 1)
    elif rank == 1:
        for i in range(5):
            x = torch.empty(1, dtype=torch.long)
            dist.recv(x, 0)
            assert x.item() == i


def groups():
    pair = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        x = torch.tensor([1.0])
        dist.all_reduce(x, group=pair)
        same(x, torch.tensor([2.0]))
        if rank == 0:  # the other rank keeps the group until its exit; no rank waits for it
            dist.destroy_process_group(pair)
            del pair
    dist.barrier()


def rejections():
    def expect_rejected(word, call):
        try:
            call()
        except (ValueError, RuntimeError) as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"{word}: the call was accepted")
    expect_rejected("bool", lambda: dist.all_reduce(torch.tensor([True])))
    expect_rejected("MIN and MAX", lambda: dist.all_reduce(torch.tensor([1]), op=dist.ReduceOp.BOR))
    expect_rejected("tags", lambda: dist.isend(torch.zeros(1), (rank + 1) % size, tag=3))
    expect_rejected("named", lambda: dist.recv(torch.zeros(1)))
    expect_rejected("dense CPU", lambda: dist.all_reduce(torch.zeros(2, device="meta")))
    ones = torch.ones
    expect_rejected("not with itself", lambda: dist.send(ones(1), rank))
    # Mismatched sizes and types.
    expect_rejected("invalid tensor type at index 0", lambda: dist.all_gather_into_tensor(ones(size * 2), ones(2).double()))
    expect_rejected("invalid tensor type at index 0", lambda: dist.reduce_scatter_tensor(ones(2), ones(size * 2).double()))
    expect_rejected("Incorrect output list size 1", lambda: dist.all_gather([ones(2)], ones(2)))
    expect_rejected("invalid tensor size at index 0 (expected (2,), got (1,))",
            lambda: dist.all_gather([ones(1), ones(3), *[ones(2)] * (size - 2)], ones(2)))
    expect_rejected("Incorrect output list size", lambda: dist.gather(ones(2), [ones(2)] * (size + 1), dst=rank))
    expect_rejected("invalid tensor size at index 0", lambda: dist.gather(ones(2), [ones(3)] * size, dst=rank))
    expect_rejected("Incorrect input list size", lambda: dist.scatter(ones(2), [ones(2)] * (size + 1), src=rank))
    expect_rejected("invalid tensor size at index 0", lambda: dist.scatter(ones(2), [ones(1)] * size, src=rank))
    expect_rejected("invalid tensor type", lambda: dist.GroupMember.WORLD.scatter(
        [ones(2)], [[ones(2).double()] * size], options(dist.ScatterOptions(), rank)))
    expect_rejected("Incorrect input list size", lambda: dist.reduce_scatter(ones(2), [ones(2)] * (size + 1)))
    expect_rejected("invalid tensor size at index 1", lambda: dist.reduce_scatter(ones(2), [ones(2)] + [ones(3)] * (size - 1)))
    expect_rejected("does not divide equally", lambda: dist.all_to_all_single(ones(size + 1), ones(size + 1)))
    expect_rejected("Split sizes [1, 1, 1, 1]", lambda: dist.all_to_all_single(ones(4), ones(4), [1] * 4, [1] * 4))
    expect_rejected("Split sizes", lambda: dist.all_to_all_single(ones(4), ones(4), [5] + [0] * (size - 1), [2] * size))
    expect_rejected("Incorrect input list size", lambda: dist.all_to_all([ones(2)] * size, [ones(2)] * (size + 1)))
    dist.barrier()  # the group must still work
    # A type mismatch is detected even if both types have the same size.
    pair = dist.new_group([0, 1])
    if rank == 1:
        expect_rejected("i32", lambda: dist.broadcast(torch.ones(2, dtype=torch.int32), 0, group=pair))
    elif rank == 0:
        dist.broadcast(ones(2), 0, group=pair, async_op=True)  # the root may complete before the mismatch is detected
    dist.barrier()  # keeps the root running until then


def options(of, root):
    of.rootRank = root
    return of


def lost():
    """Errors of subgroups, send and receive must name world ranks. No call may wait for a rank that was lost before its first
    connection."""
    assert size == 3
    last = dist.new_group([1, 2])
    if rank == 2:
        dist.send(torch.ones(1), 1)
    if rank == 1:
        dist.recv(torch.ones(1), 2)
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), 9)

    def expect_lost(call):
        try:
            call()
        except RuntimeError as error:
            assert error.rank == 2 and "rank 2" in str(error), error
        else:
            raise AssertionError("the call did not report that rank 2 is lost")
    if rank == 1:
        expect_lost(lambda: dist.all_reduce(torch.ones(1), group=last))
        expect_lost(lambda: dist.recv(torch.ones(1), 2))  # the ranks have connected before
    if rank == 0:
        expect_lost(lambda: dist.recv(torch.ones(1), 2))  # the ranks have never connected
        expect_lost(lambda: dist.send(torch.ones(1), 2))
    expect_lost(lambda: dist.new_group([0, 1, 2]))
    open(f"{os.environ['RENDEZVOUS_FILE']}.{rank}", "w").close()
    while not os.path.exists(f"{os.environ['RENDEZVOUS_FILE']}.{1 - rank}"):  # a rank that exits here counts as lost, so wait for the other one
        time.sleep(0.01)
    os._exit(0)


def data_parallel():
    """DistributedDataParallel with unused parameters, buffers and several buckets, compared with the whole batch on one process."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.unused = nn.Linear(20, 300), nn.Linear(300, 5), nn.Linear(3, 3)
            self.norm = nn.BatchNorm1d(300)

        def forward(self, x):
            return self.second(torch.relu(self.norm(self.first(x))))
    torch.manual_seed(1 + rank)  # all ranks must start with the weights of rank 0
    net = Net().double().eval()
    ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.02, find_unused_parameters=True)
    torch.manual_seed(1)
    reference = Net().double().eval()
    for a, b in zip(net.parameters(), reference.parameters()):
        same(a.detach(), b.detach())
    torch.manual_seed(2)
    batch = torch.randn(4 * size, 20).double()
    for model, rows in ((ddp, batch[4 * rank:4 * rank + 4]), (reference, batch)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(rows).pow(2).mean().backward()
            optimizer.step()
    for a, b in zip(net.parameters(), reference.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


faulthandler.dump_traceback_later(float(os.environ.get("LIMIT_S", "60")), exit=True)
espalier.torch.options = os.environ.get("BACKEND_OPTIONS", "")
dist.init_process_group("espalier", init_method="file://" + os.environ["RENDEZVOUS_FILE"], rank=rank, world_size=size,
                        timeout=datetime.timedelta(minutes=5))
assert dist.get_backend() == "espalier"
for part in sys.argv[1:] or ["collectives", "strided", "asynchronous", "messages", "groups", "data_parallel", "rejections"]:
    globals()[part]()
dist.destroy_process_group()
print("rank", rank, "good")
