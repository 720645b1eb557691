#!/usr/bin/env python3
"""train_test.py ESPALIER: counts the bytes that `espalier train` with ZeRO stage 3 sends between hosts, with and without the
parts of ZeRO++. There are M hosts with G ranks each, and P parameters of 16 bits. Expected bytes per step and host, in units
of 2P (M-1)/M bytes:

  plain           3 to 3G    two all-gathers and a reduce-scatter; depends on the algorithm unless G = 1
  qwz,hpz,qgz     0.75       a byte per value for the first all-gather, nothing for the second, half a byte per gradient for
                             the reduce-scatter; and 4 bytes for every 2048 values and for every 128 gradients

Start-up traffic is excluded by subtracting a shorter run. The communicators' counters (ranks/rank-K.json) must equal the
formula within 1 %, because uneven parts are rounded up. With G = 1 the counters of the interfaces, without packet headers,
must equal it within 4 %, because ranks also measure the links between hosts at their start, with a varying number of bytes.
Times are printed but not checked.

As a benchmark:  train_test.py ESPALIER --ranks 2 --model dim=512,layers=4 --steps 4,12 --rate 300mbit
"""
import argparse
import json
import pathlib
import sys
import tempfile

from all_reduce_test import BACKGROUND_BYTES, FRAME, HEADERS, check
from netns import SKIP, Hosts, NotAllowed

RUN = """
[run]
name = "two-hosts"
threads = 1
[model]
arch = "gpt"
layers = {layers}
heads = 4
dim = {dim}
seq_len = 32
[data]
train = "{folder}/text.txt"
cache = "{folder}/cache"
[train]
global_batch = 8
precision = "bf16"
eval_every = 0
[sync]
method = "zero3"
[checkpoint]
resume = "none"
[log]
tensorboard = false
"""
VARIANTS = {"plain": "none", "qwz,hpz,qgz": "qwz,hpz,qgz"}
VALUES_PER_SCALE, GRADIENTS_PER_SCALE = 2048, 128


def bounds(variant, ranks):
    """Minimum and maximum that a host sends to other hosts in one step, in the units above."""
    if variant == "plain":
        return 3, 3 * ranks
    exact = (1 + 4 / VALUES_PER_SCALE + 0.5 + 4 / GRADIENTS_PER_SCALE) / 2
    return exact, exact


def across(row, local, ranks, size):
    """Bytes sent to other hosts, from one row of a rank's counters. Ranks are numbered host by host. In a ring over all ranks,
    only the last rank of a host sends to another host. In other patterns a rank sends equal parts to all other ranks."""
    if row["group"] == "node":
        return 0
    if row["group"] == "across_nodes" or ranks == 1:
        return row["bytes_sent"]
    if row["algo"] == "ring":
        return row["bytes_sent"] if local == ranks - 1 else 0
    return row["bytes_sent"] * (size - ranks) / (size - 1)


def run(hosts, espalier, folder, ranks, variant, steps):
    """Bytes that each host sent to other hosts, by the ranks' counters and by its interface; and milliseconds per step."""
    where = folder / f"{ranks}-{variant.replace(',', '-')}-{steps}"
    before = hosts.counters()
    command = [espalier, "train", str(folder / "run.toml"), "--run-dir", str(where), "--set", f"train.steps={steps}",
               "--set", f"sync.quantise={VARIANTS[variant]}"]
    runs = hosts.run(command, ranks, timeout_s=120, env={"ESPALIER_SECRET_FILE": str(folder / "secret")})
    after = hosts.counters()
    for one in runs:
        check(one.code == 0, f"{variant}: rank {one.rank} ended with {one.code}\n{one.out[-2000:]}{one.err[-2000:]}")
    counted, seen = [0] * hosts.num_hosts, []
    for one in runs:
        rank = json.loads((where / f"ranks/rank-{one.rank}.json").read_text())
        counted[one.host] += sum(across(row, one.rank % ranks, ranks, len(runs)) for row in rank["comm"])
    for host in range(hosts.num_hosts):
        delta = {key: after[host][key] - before[host][key] for key in after[host]}
        seen.append((delta["sent_bytes"] - HEADERS * delta["sent_packets"], delta["retransmitted_segments"]))
    summary = json.loads((where / "summary.json").read_text())
    lines = [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]
    return counted, seen, summary["parameters"], lines[-1]["step_ms"]


def measure(hosts, espalier, folder, ranks, variant, steps):
    short, long = (run(hosts, espalier, folder, ranks, variant, num) for num in steps)
    num, unit = steps[1] - steps[0], 2 * long[2] * (hosts.num_hosts - 1) / hosts.num_hosts
    least, most = bounds(variant, ranks)
    for host in range(hosts.num_hosts):
        counted = (long[0][host] - short[0][host]) / num / unit
        check(0.99 * least <= counted <= 1.01 * most,
              f"{variant}: the ranks of host {host} sent {counted:.4f} to other hosts; expected {least:.4f} to {most:.4f}")
        seen = (long[1][host][0] - short[1][host][0]) / num / unit
        slack = ((long[1][host][1] + short[1][host][1]) * FRAME + BACKGROUND_BYTES) / num / unit
        check(ranks > 1 or abs(seen - counted) <= 0.04 * counted + slack,
              f"{variant}: the interface of host {host} sent {seen:.4f}; expected {counted:.4f}, as its ranks counted")
    print(f"{variant:<14}{least:>9.3f}..{most:<6.3f}{counted:>10.3f}{seen:>12.3f}{long[3]:>10.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("espalier")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, help="ranks per host; default: 1, then 2")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--model", default="dim=128,layers=2")
    parser.add_argument("--steps", default="2,8", help="numbers of steps of the shorter and the longer run")
    options = parser.parse_args()
    steps = [int(number) for number in options.steps.split(",")]
    model = dict(word.split("=") for word in options.model.split(","))
    with tempfile.TemporaryDirectory(prefix="esp-two-hosts-") as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("the rain in Spain stays mainly in the plain, and so it goes. " * 400)
        (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
        (folder / "secret").chmod(0o600)
        (folder / "run.toml").write_text(RUN.format(folder=folder, **model))
        try:
            with Hosts(options.hosts, options.rate) as hosts:
                for ranks in [options.ranks] if options.ranks else [1, 2]:
                    print(f"{options.hosts} hosts with {ranks} ranks each, {options.rate} per direction, {options.model}; bytes "
                          f"sent by a host per step, in units of 2P (M-1)/M")
                    print(f"{'variant':<14}{'expected':>17}{'counted':>10}{'interface':>12}{'step ms':>10}")
                    for variant in VARIANTS:
                        measure(hosts, options.espalier, folder, ranks, variant, steps)
        except NotAllowed as error:
            print(f"skipped: {error}")
            return SKIP
    return 0


if __name__ == "__main__":
    sys.exit(main())
