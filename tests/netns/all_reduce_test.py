#!/usr/bin/env python3
"""all_reduce_test.py RANK_PROGRAM: counts the bytes that each host sends to other hosts in one all-reduce of S bytes. There
are M hosts with G ranks each. Expected bytes:

  hierarchical, torus2d   2(M-1)/M S     an all-reduce between the hosts, divided over the ranks of a host
  ring                    2(N-1)/N S     N = MG ranks numbered host by host: one link of the ring leaves each host
  ring_scattered        G 2(N-1)/N S     ranks placed round-robin: every link of the ring leaves a host

The counters of the transports must equal the formula. The counters of the host's interface, without packet headers, must
equal it within 2 %. Times are printed but not checked.

As a benchmark:  all_reduce_test.py RANK_PROGRAM --hosts 3 --ranks 2 --rate 300mbit --bytes 12582912 --repeats 7
"""
import argparse
import json
import statistics
import sys

from netns import SKIP, Hosts, NotAllowed

ALGORITHMS = ("ring_scattered", "ring", "hierarchical", "torus2d")
HEADERS = 66       # Ethernet 14, IPv4 20, TCP 20, TCP timestamps 12; a packet may be longer than one frame
FRAME = 1514
BACKGROUND_BYTES = 16 << 10  # failure-detector heartbeats and two barriers


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def parts_across(algorithm, num_hosts, ranks):
    """Bytes that leave each host as a fraction of S: numerator and denominator."""
    if algorithm in ("hierarchical", "torus2d"):
        return 2 * (num_hosts - 1), num_hosts
    size = num_hosts * ranks
    return 2 * (size - 1) * (ranks if algorithm == "ring_scattered" else 1), size


def measure(hosts, program, algorithm, ranks, num_bytes, repeats):
    """Runs the rank program, compares both kinds of counters with the formula, and returns the median time and the
    interface bytes."""
    before = hosts.counters()
    runs = hosts.run([program, "10.77.0.0/24", algorithm, str(num_bytes // 4), str(repeats)], ranks, timeout_s=120)
    after = hosts.counters()
    for run in runs:
        check(run.code == 0, f"{algorithm}: rank {run.rank} ended with {run.code}\n{run.out}{run.err}")
    reports = [json.loads(run.out) for run in runs]
    check({r["transport"] for r in reports} == {"mixed"}, f"transport: got {reports[0]['transport']}; expected mixed")

    numerator, denominator = parts_across(algorithm, hosts.num_hosts, ranks)
    want = repeats * num_bytes * numerator // denominator
    seen = []
    for host in range(hosts.num_hosts):
        here = [r for r, run in zip(reports, runs) if run.host == host]
        across = sum(sent for r in here for peer, sent in enumerate(r["sent"]) if runs[peer].host != host)
        check(across == want, f"{algorithm}: the ranks of host {host} sent {across} bytes to other hosts; expected {want}")
        # Each rank reads the counters at its own time, always outside the calls.
        payload = [r["interface_bytes"] - HEADERS * r["interface_packets"] for r in here]
        again = (after[host]["retransmitted_segments"] - before[host]["retransmitted_segments"]) * FRAME
        for one in payload:
            check(0.98 * want <= one <= 1.02 * want + again + BACKGROUND_BYTES,
                  f"{algorithm}: the interface of host {host} sent {one} bytes; expected {want}")
        check(after[host]["delayed_packets"] > before[host]["delayed_packets"], f"the rate limit of host {host} delayed no packets")
        seen.append(statistics.mean(payload) / repeats / num_bytes)
    slowest = [max(r["ms"][i] for r in reports) for i in range(repeats)]
    return statistics.median(slowest), statistics.mean(seen)


def table(program, num_hosts, ranks, rate, num_bytes, repeats):
    print(f"{num_hosts} hosts with {ranks} ranks each, {rate} per direction, all-reduce of {num_bytes / 1e6:g} MB, "
          f"median of {repeats} calls; bytes sent to other hosts as a multiple of S")
    print(f"{'algorithm':<16}{'expected':>20}{'by interface':>14}{'ms':>9}")
    with Hosts(num_hosts, rate) as hosts:
        for algorithm in ALGORITHMS:
            ms, seen = measure(hosts, program, algorithm, ranks, num_bytes, repeats)
            numerator, denominator = parts_across(algorithm, num_hosts, ranks)
            print(f"{algorithm:<16}{numerator / denominator:>18.4f} S{seen:>12.4f} S{ms:>9.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--hosts", type=int, help="number of hosts; default: 2, then 3")
    parser.add_argument("--ranks", type=int, default=2, help="ranks per host")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--bytes", type=int, default=6 << 20, help="bytes per all-reduce: a multiple of 4 times the number of ranks")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    try:
        for num_hosts in [options.hosts] if options.hosts else [2, 3]:
            check(options.bytes % (4 * num_hosts * options.ranks) == 0, "--bytes: must be a multiple of 4 times the number of ranks")
            table(options.program, num_hosts, options.ranks, options.rate, options.bytes, options.repeats)
    except NotAllowed as error:
        print(f"skipped: {error}")
        return SKIP
    return 0


if __name__ == "__main__":
    sys.exit(main())
