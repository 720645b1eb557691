#!/usr/bin/env python3
"""straggler.py: parameter servers with one slow worker, as real processes: compares the modes sync, ssp and async.

N workers and one dedicated server train a small GPT. A CPU quota (cgroup) limits each worker to a fraction of a core, and the
last worker to a quarter of that; the server has no quota. Throughput is the number of gradients that all workers push per
second. For `async` and `ssp` it is counted in the order of pushes that the server recorded, between two steps of worker 0,
whose times are in metrics.jsonl. For `sync` it is N times the steps of worker 0. The ideal is `async` without a slow worker.

  sudo bench/communicating_less/straggler.py --workers 4 --slow 4
"""
import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from harness import ESPALIER, markdown, metrics, settings, write_text

RUN = """
[run]
name = "straggler"
threads = 1
[model]
layers = 2
heads = 4
dim = 64
seq_len = 64
[data]
train = "{text}"
val_fraction = 0.02
cache = "{cache}"
[train]
steps = 100000
global_batch = {batch}
optimizer = "sgd"
lr = 0.02
schedule = "constant"
eval_batches = 1
[sync]
method = "ps"
servers = 1
server_ranks = "dedicated"
[checkpoint]
resume = "none"
[log]
every = 1
tensorboard = false
"""
PERIOD_US = 20000


class Quota:
    """A cgroup (v1 or v2) that limits one process to a fraction of a core."""

    def __init__(self, name, pid):
        second = pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self.folder = pathlib.Path("/sys/fs/cgroup" + ("" if second else "/cpu")) / f"esp-{os.getpid()}-{name}"
        self.second = second
        self.folder.mkdir()
        (self.folder / "cgroup.procs").write_text(str(pid))

    def share(self, share):
        quota = "max" if share is None and self.second else -1 if share is None else int(share * PERIOD_US)
        if self.second:
            (self.folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            return
        (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self.folder / "cpu.cfs_quota_us").write_text(str(quota))

    def remove(self):
        for _ in range(100):
            try:
                return self.folder.rmdir()
            except OSError:  # the process in it has not ended yet
                time.sleep(0.05)


def wait_for(folder, step, limit_s):
    """Metrics line of worker 0 at the first step >= `step`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if (folder / "metrics.jsonl").exists():
            for line in metrics(folder):
                if line["step"] >= step:
                    return line
        time.sleep(0.1)
    raise RuntimeError(f"{folder.name}: step {step} was not reached in {limit_s} s")


def children(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sorted(int(one) for one in text.split())


def pushes_between(order, first, last):
    """Number of pushes of all workers between the pushes of worker 0 for the steps `first` and `last` (counted from 0)."""
    total, counting = 0, False
    for line in order.read_text().splitlines():
        kind, worker, step = line.split()
        if kind != "push":
            continue
        total += counting
        if worker == "0" and int(step) == first:
            counting = True
        if worker == "0" and int(step) == last:
            return total
    raise RuntimeError("the recorded order does not contain the pushes of worker 0")


def measure(name, values, slowed, folder, run_file, options):
    where = folder / name
    values = dict(values)
    if values["sync.ps_mode"] != "sync":
        values["sync.record"] = str(where) + "-order"
    process = subprocess.Popen([ESPALIER, "train", str(run_file), "--nproc", str(options.workers + 1), "--run-dir",
                                str(where), *settings(values)], stdout=subprocess.DEVNULL,
                               stderr=open(f"{where}.err", "w"))
    quotas = []
    try:
        wait_for(where, 3, 60)
        quotas = [Quota(f"w{i}", pid) for i, pid in enumerate(children(process.pid)[:options.workers])]
        for i, quota in enumerate(quotas):
            slow = slowed and i + 1 == options.workers
            quota.share(options.share / (options.slow if slow else 1))
        time.sleep(2)  # steps that began before the quotas have ended
        first = metrics(where)[-1]
        time.sleep(options.seconds)
        last = metrics(where)[-1]
    finally:
        for quota in quotas:
            quota.share(None)  # all workers stop before the same step, which the slow worker must reach too
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
        for quota in quotas:
            quota.remove()
    seconds = last["mono_s"] - first["mono_s"]
    if values["sync.ps_mode"] == "sync":
        return options.workers * (last["step"] - first["step"]) / seconds
    order = pathlib.Path(values["sync.record"]) / "server-0.order"
    return pushes_between(order, first["step"] - 1, last["step"] - 1) / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slow", type=float, default=4, help="slowdown factor of the last worker")
    parser.add_argument("--share", type=float, default=0.4, help="fraction of a core for each of the other workers")
    parser.add_argument("--seconds", type=float, default=12, help="seconds per measurement")
    options = parser.parse_args()
    cases = {"async, no slow worker": ({"sync.ps_mode": "async"}, False), "sync, no slow worker": ({"sync.ps_mode": "sync"}, False),
             "sync": ({"sync.ps_mode": "sync"}, True),
             "ssp, bound 3": ({"sync.ps_mode": "ssp", "sync.staleness": 3}, True),
             "async": ({"sync.ps_mode": "async"}, True)}
    rows, ideal = [], None
    with tempfile.TemporaryDirectory(prefix="esp-straggler-") as name:
        folder = pathlib.Path(name)
        write_text(folder / "text.txt")
        run_file = folder / "run.toml"
        run_file.write_text(RUN.format(text=folder / "text.txt", cache=folder / "cache", batch=2 * options.workers))
        for case, (values, slowed) in cases.items():
            pace = measure(case.replace(" ", "-").replace(",", ""), values, slowed, folder, run_file, options)
            ideal = ideal or pace
            rows.append([case, f"{pace:.1f}", f"{100 * pace / ideal:.0f} %"])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(f"{options.workers} workers, {options.share:g} of a core each, the last {options.slow:g} times slower; "
          f"(N − 1)/N = {100 * (options.workers - 1) / options.workers:.0f} %\n")
    print(markdown(["mode", "gradients/s of all workers", "of the ideal"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
