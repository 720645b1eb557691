#!/usr/bin/env python3
"""quantised_test.py RANK_PROGRAM: what each host sends to the others for one unit of P 16-bit values in a step of ZeRO
stage 3 (gather, gather, reduce-scatter), with the parts of ZeRO++ on and off, M hosts of G ranks, N = MG.

  ring of 16-bit values   2 (N-1)/N P       each, for whatever is off
  qwz                     (M-1)/M P         a byte a value, and 4 for every 2048 of a chunk
  hpz                     0                 for the second gather
  qgz                     (M-1)/M P/2       half a byte a value, and 4 for every 2048 of a chunk

Asserted twice: by the transports' counters, to the byte, and by the counters of the shaped interface without the headers
of its packets, to 2 %. Times are printed and decide nothing.

As a benchmark:  quantised_test.py RANK_PROGRAM --hosts 2 --ranks 2 --rate 300mbit --count 6291456 --repeats 7
"""
import argparse
import json
import statistics
import sys

from all_reduce_test import FRAME, HEADERS, HOUSEKEEPING, check
from netns import SKIP, Hosts, NotAllowed

PARTS = ("none", "qwz", "qwz,hpz", "qgz", "qwz,hpz,qgz")
BLOCK = 2048


def bytes_across(parts, num_hosts, ranks, count):
    """What each host sends to others in one step; count is a multiple of N."""
    size = num_hosts * ranks
    chunk = count // size
    scales = 4 * -(-chunk // BLOCK)
    ring = 2 * (size - 1) * chunk
    chunks = ranks * (num_hosts - 1)  # of a host, each once to every other; or of the others, each once from this one
    gather = chunks * (chunk + scales) if "qwz" in parts else ring
    again = 0 if "hpz" in parts else gather
    blocks, rest = divmod(chunk, BLOCK)
    scatter = chunks * (blocks * BLOCK // 2 + -(-rest // 2) + scales) if "qgz" in parts else ring
    return gather + again + scatter


def measure(hosts, program, parts, ranks, count, repeats):
    """Runs it, holds both kinds of counters to the formula, and returns the median time and what the interfaces saw."""
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
        check(across == want, f"{parts}: host {host} counted {across} bytes to others, the formula says {want}")
        # Each of its ranks looked at a moment of its own, all outside the steps.
        payload = [r["interface_bytes"] - HEADERS * r["interface_packets"] for r in here]
        again = (after[host]["segments_sent_again"] - before[host]["segments_sent_again"]) * FRAME
        for one in payload:
            check(0.98 * want <= one <= 1.02 * want + again + HOUSEKEEPING,
                  f"{parts}: the interface of host {host} sent {one} bytes, the formula says {want}")
        seen.append(statistics.mean(payload) / repeats / (2 * count))
    slowest = [max(r["ms"][i] for r in reports) for i in range(repeats)]
    return statistics.median(slowest), statistics.mean(seen)


def table(program, num_hosts, ranks, rate, count, repeats):
    print(f"{num_hosts} hosts of {ranks} ranks, {rate} each way, a unit of {count / 1e6:g} M 16-bit values, "
          f"median of {repeats}")
    print(f"{'parts':<14}{'across, by formula':>20}{'by interface':>14}{'ms':>9}")
    with Hosts(num_hosts, rate) as hosts:
        for parts in PARTS:
            ms, seen = measure(hosts, program, parts, ranks, count, repeats)
            formula = bytes_across(parts, num_hosts, ranks, count) / (2 * count)
            print(f"{parts:<14}{formula:>18.4f} P{seen:>12.4f} P{ms:>9.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--hosts", type=int, help="default: 2, then 3")
    parser.add_argument("--ranks", type=int, default=2, help="per host")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--count", type=int, default=3 << 19, help="a multiple of the number of ranks")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    try:
        for num_hosts in [options.hosts] if options.hosts else [2, 3]:
            check(options.count % (num_hosts * options.ranks) == 0, "--count must divide over the ranks")
            table(options.program, num_hosts, options.ranks, options.rate, options.count, options.repeats)
    except NotAllowed as error:
        print(f"skipped: {error}")
        return SKIP
    return 0


if __name__ == "__main__":
    sys.exit(main())
