#!/usr/bin/env python3
"""Compares DistributedDataParallel over espalier and over gloo, measured in turn in the same processes.

    ESPALIER_LIBRARY=build/lib/libespalier_collectives.so.1 /usr/bin/python3 bench/ecosystem/ddp.py [--ranks 2]

Prints Markdown: the all-reduce alone by size, then training steps of the BERT of examples/python and of wide layers, whose
gradients are large relative to their compute. Values are medians; both backends of a row are measured in turn.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "python"), str(SOURCE / "examples/python")]
BACKENDS = ("espalier", "gloo")


def rank_main(o):
    import torch
    import torch.distributed as dist
    from torch import nn
    import espalier.torch  # noqa: F401
    from train_ddp_bert import SmallBert

    torch.set_num_threads(o.threads)
    dist.init_process_group("espalier", init_method="file://" + o.meet, rank=o.rank, world_size=o.ranks)
    groups = {"espalier": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}

    def timed(work):
        dist.barrier()
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    def in_turn(works, rounds):
        """Seconds per backend: the slowest rank, median over the rounds."""
        times = {name: [] for name in works}
        for i in range(rounds + 2):
            for name in (works if i % 2 == 0 else reversed(list(works))):
                took = torch.tensor([timed(works[name])])
                dist.all_reduce(took, op=dist.ReduceOp.MAX)
                if i >= 2:  # the first two warm up
                    times[name].append(took.item())
        return {name: statistics.median(taken) for name, taken in times.items()}

    def row(name, times, unit):
        if o.rank == 0:
            ours, theirs = times["espalier"], times["gloo"]
            print(f"| {name} | {rounded(ours * unit)} | {rounded(theirs * unit)} | {theirs / ours:.2f} |", flush=True)

    def rounded(number):
        """Formats with three digits."""
        return f"{float(f'{number:.3g}'):g}"

    def heading(what, unit):
        if o.rank == 0:
            print(f"\n| {what} | espalier, {unit} | gloo, {unit} | gloo / espalier |\n|---|---|---|---|")

    heading("all-reduce of fp32", "µs")
    for size in (4 << 10, 64 << 10, 1 << 20, 8 << 20, 25 << 20, 64 << 20):
        x = torch.ones(size // 4)
        repeat = max(1, (1 << 20) // size)
        row(f"{size >> 10} KiB", {name: t / repeat for name, t in in_turn(
            {name: lambda g=group: [dist.all_reduce(x, group=g) for _ in range(repeat)]
             for name, group in groups.items()}, o.rounds).items()}, 1e6)

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(1536, 1536), nn.ReLU())])

        def forward(self, x, mask):
            return self.layers(x.float().expand(-1, 1536))[:, :2]

    heading("training step", "ms")
    for name, make, batch in (("BERT, 10.5 M parameters, 8 × 128 tokens per rank", SmallBert, 8),
                              ("6 wide layers, 14.2 M parameters, 4 rows per rank", Wide, 4)):
        works = {}
        for backend, group in groups.items():
            torch.manual_seed(1)
            model = nn.parallel.DistributedDataParallel(make(), process_group=group, gradient_as_bucket_view=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            width = 128 if make is SmallBert else 1
            ids = torch.randint(0, 30522, (batch, width))
            mask, label = torch.ones_like(ids), torch.zeros(batch, dtype=torch.long)

            def step(model=model, optimizer=optimizer, ids=ids, mask=mask, label=label):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(ids, mask), label).backward()
                optimizer.step()
            works[backend] = step
        row(name, in_turn(works, o.rounds), 1e3)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads per rank")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.rank is not None:
        return rank_main(o)
    with tempfile.TemporaryDirectory() as folder:
        meet = os.path.join(folder, "meet")
        ranks = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), "--meet", meet],
                                  env={**os.environ, "OMP_NUM_THREADS": str(o.threads)}) for rank in range(o.ranks)]
        sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
