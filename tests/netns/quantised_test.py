#!/usr/bin/env python3
"""quantised_test.py RANK_PROGRAM: counts the bytes that each host sends to other hosts in a step of ZeRO stage 3 (two
all-gathers and a reduce-scatter) for one unit of P 16-bit values, with the parts of ZeRO++ (qwz, hpz, qgz) enabled or
disabled. There are M hosts with G ranks each; N = MG. Expected bytes:

  ring of 16-bit values   2 (N-1)/N P       for each collective with a disabled part
  qwz                     (M-1)/M P         for each all-gather: a byte per value, and 4 bytes for every 2048 values of a chunk
  hpz                     0                 for the second all-gather
  qgz                     (M-1)/M P/2       for the reduce-scatter: half a byte per value, and 4 bytes for every 2048 values of
                                            a chunk

The counters of the transports must equal the formula. The counters of the host's interface, without packet headers, must
equal it within 2 %. Times are printed but not checked.

As a benchmark:  quantised_test.py RANK_PROGRAM --hosts 2 --ranks 2 --rate 300mbit --count 6291456 --repeats 7
"""
import argparse
import json
import statistics
import sys

from all_reduce_test import BACKGROUND_BYTES, FRAME, HEADERS, check
from netns import SKIP, Hosts, NotAllowed

PARTS = ("none", "qwz", "qwz,hpz", "qgz", "qwz,hpz,qgz")
BLOCK = 2048


def bytes_across(parts, num_hosts, ranks, count):
    """Bytes that each host sends to others in one step; count is a multiple of N."""
    size = num_hosts * ranks
    chunk = count // size
    scales = 4 * -(-chunk // BLOCK)
    ring = 2 * (size - 1) * chunk
    # A gather sends each chunk of the host once to every other host. A scatter sends each chunk of the other hosts once.
    chunks = ranks * (num_hosts - 1)
    gather = chunks * (chunk + scales) if "qwz" in parts else ring
    again = 0 if "hpz" in parts else gather
    blocks, rest = divmod(chunk, BLOCK)
    scatter = chunks * (blocks * BLOCK // 2 + -(-rest // 2) + scales) if "qgz" in parts else ring
    return gather + again + scatter


def measure(hosts, program, parts, ranks, count, repeats):
    """Runs the rank program, compares both kinds of counters with the formula, and returns the median time and the
    interface bytes."""
    before = hosts.counters()
    runs = hosts.run([program, "10.77.0.0/24", parts, str(count), str(repeats)], ranks, timeout_s=120)
    after = hosts.counters()
    for run in runs:
        check(run.code == 0, f"{parts}: rank {run.rank} ended with {run.code}\n{run.out}{run.err}")
    reports = [json.loads(run.out) for run in runs]
    want = repeats * bytes_across(parts, hosts.num_hosts, ranks, count)
    seen = []
    for host in range(hosts.num_hosts):
        here = [r for r, run in zip(reports, runs) if run.host == host]
        across = sum(sent for r in here for peer, sent in enumerate(r["sent"]) if runs[peer].host != host)
        check(across == want, f"{parts}: the ranks of host {host} sent {across} bytes to other hosts; expected {want}")
        # Each rank reads the counters at its own time, always outside the steps.
        payload = [r["interface_bytes"] - HEADERS * r["interface_packets"] for r in here]
        again = (after[host]["retransmitted_segments"] - before[host]["retransmitted_segments"]) * FRAME
        for one in payload:
            check(0.98 * want <= one <= 1.02 * want + again + BACKGROUND_BYTES,
                  f"{parts}: the interface of host {host} sent {one} bytes; expected {want}")
        seen.append(statistics.mean(payload) / repeats / (2 * count))
    slowest = [max(r["ms"][i] for r in reports) for i in range(repeats)]
    return statistics.median(slowest), statistics.mean(seen)


def table(program, num_hosts, ranks, rate, count, repeats):
    print(f"{num_hosts} hosts with {ranks} ranks each, {rate} per direction, a unit of {count / 1e6:g} M 16-bit values, "
          f"median of {repeats} steps; bytes sent to other hosts as a multiple of the unit's size")
    print(f"{'parts':<14}{'expected':>20}{'by interface':>14}{'ms':>9}")
    with Hosts(num_hosts, rate) as hosts:
        for parts in PARTS:
            ms, seen = measure(hosts, program, parts, ranks, count, repeats)
            formula = bytes_across(parts, num_hosts, ranks, count) / (2 * count)
            print(f"{parts:<14}{formula:>18.4f} P{seen:>12.4f} P{ms:>9.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--hosts", type=int, help="number of hosts; default: 2, then 3")
    parser.add_argument("--ranks", type=int, default=2, help="ranks per host")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--count", type=int, default=3 << 19, help="values of the unit: a multiple of the number of ranks")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    try:
        for num_hosts in [options.hosts] if options.hosts else [2, 3]:
            check(options.count % (num_hosts * options.ranks) == 0, "--count: must be a multiple of the number of ranks")
            table(options.program, num_hosts, options.ranks, options.rate, options.count, options.repeats)
    except NotAllowed as error:
        print(f"skipped: {error}")
        return SKIP
    return 0


if __name__ == "__main__":
    sys.exit(main())
