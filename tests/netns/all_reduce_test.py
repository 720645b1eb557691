#!/usr/bin/env python3
"""all_reduce_test.py RANK_PROGRAM: what each host sends to the others in one all-reduce of S bytes, M hosts of G ranks.

  hierarchical, torus2d   2(M-1)/M S     each host has one part of the sum to trade, whoever carries it
  ring                    2(N-1)/N S     N = MG ranks numbered host by host: one link of the ring leaves each host
  ring_scattered        G 2(N-1)/N S     ranks dealt out in turn: every link of the ring leaves a host

Asserted twice: by the transports' counters, to the byte, and by the counters of the shaped interface without the headers
of its packets, to 2 %. Times are printed and decide nothing.

As a benchmark:  all_reduce_test.py RANK_PROGRAM --hosts 3 --ranks 2 --rate 300mbit --bytes 12582912 --repeats 7
"""
import argparse
import json
import statistics
import sys

from netns import SKIP, Hosts, NotAllowed

ALGORITHMS = ("ring_scattered", "ring", "hierarchical", "torus2d")
HEADERS = 66       # Ethernet 14, IPv4 20, TCP 20, its timestamps 12; a packet may be far longer than one frame
FRAME = 1514
HOUSEKEEPING = 16 << 10  # the watch's beats and two barriers


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def parts_across(algorithm, num_hosts, ranks):
    """What leaves each host, as a share of S: numerator and denominator."""
    if algorithm in ("hierarchical", "torus2d"):
        return 2 * (num_hosts - 1), num_hosts
    size = num_hosts * ranks
    return 2 * (size - 1) * (ranks if algorithm == "ring_scattered" else 1), size


def measure(hosts, program, algorithm, ranks, num_bytes, repeats):
    """Runs it, holds both kinds of counters to the formula, and returns the median time and what the interfaces saw."""
    before = hosts.counters()
    runs = hosts.run([program, "10.77.0.0/24", algorithm, str(num_bytes // 4), str(repeats)], ranks, timeout_s=120)
    after = hosts.counters()
    for run in runs:
        check(run.code == 0, f"{algorithm}: rank {run.rank} ended with {run.code}\n{run.out}{run.err}")
    reports = [json.loads(run.out) for run in runs]
    check({r["transport"] for r in reports} == {"mixed"}, f"shared memory within, tcp between: {reports[0]['transport']}")

    numerator, denominator = parts_across(algorithm, hosts.num_hosts, ranks)
    want = repeats * num_bytes * numerator // denominator
    seen = []
    for host in range(hosts.num_hosts):
        here = [r for r, run in zip(reports, runs) if run.host == host]
        across = sum(sent for r in here for peer, sent in enumerate(r["sent"]) if runs[peer].host != host)
        check(across == want, f"{algorithm}: host {host} counted {across} bytes to others, the formula says {want}")
        # Each of its ranks looked at a moment of its own, all outside the calls.
        payload = [r["interface_bytes"] - HEADERS * r["interface_packets"] for r in here]
        again = (after[host]["segments_sent_again"] - before[host]["segments_sent_again"]) * FRAME
        for one in payload:
            check(0.98 * want <= one <= 1.02 * want + again + HOUSEKEEPING,
                  f"{algorithm}: the interface of host {host} sent {one} bytes, the formula says {want}")
        check(after[host]["held_back"] > before[host]["held_back"], f"the link of host {host} was not shaped")
        seen.append(statistics.mean(payload) / repeats / num_bytes)
    slowest = [max(r["ms"][i] for r in reports) for i in range(repeats)]
    return statistics.median(slowest), statistics.mean(seen)


def table(program, num_hosts, ranks, rate, num_bytes, repeats):
    print(f"{num_hosts} hosts of {ranks} ranks, {rate} each way, all-reduce of {num_bytes / 1e6:g} MB, "
          f"median of {repeats}")
    print(f"{'algorithm':<16}{'across, by formula':>20}{'by interface':>14}{'ms':>9}")
    with Hosts(num_hosts, rate) as hosts:
        for algorithm in ALGORITHMS:
            ms, seen = measure(hosts, program, algorithm, ranks, num_bytes, repeats)
            numerator, denominator = parts_across(algorithm, num_hosts, ranks)
            print(f"{algorithm:<16}{numerator / denominator:>18.4f} S{seen:>12.4f} S{ms:>9.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--hosts", type=int, help="default: 2, then 3")
    parser.add_argument("--ranks", type=int, default=2, help="per host")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--bytes", type=int, default=6 << 20, help="a multiple of 4 times the number of ranks")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    try:
        for num_hosts in [options.hosts] if options.hosts else [2, 3]:
            check(options.bytes % (4 * num_hosts * options.ranks) == 0, "--bytes must divide into whole floats")
            table(options.program, num_hosts, options.ranks, options.rate, options.bytes, options.repeats)
    except NotAllowed as error:
        print(f"skipped: {error}")
        return SKIP
    return 0


if __name__ == "__main__":
    sys.exit(main())
