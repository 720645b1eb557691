#!/usr/bin/env python3
"""netns_test.py RANK_PROGRAM: messages between two hosts of two ranks each over rate-limited links, with the tcp transport
and with the mixed transport (tcp and shared memory).

Compares the byte counter of each host's interface with the counters of its ranks' transports. Lower bound: the payload and
frame headers sent to the other host. Upper bound: 10 % more (Ethernet, IP and TCP headers: 66 bytes per 1448;
acknowledgements), plus retransmitted segments and 256 KiB for rendezvous, handshakes and the failure detector.
"""
import json
import sys

from netns import SKIP, Hosts, NotAllowed, sh

FRAME = 1514
SLACK = 256 << 10


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def exchange(hosts, program, transport, address, ranks_per_host=2):
    before = hosts.counters()
    runs = hosts.run([program, transport, address], ranks_per_host, timeout_s=90,
                     ipv6=":" in address)
    after = hosts.counters()
    for run in runs:
        check(run.code == 0, f"{transport}: rank {run.rank} ended with {run.code}\n{run.out}{run.err}")
    reports = [json.loads(run.out) for run in runs]

    identities = [{r["host"] for r, run in zip(reports, runs) if run.host == host} for host in range(hosts.num_hosts)]
    check(all(len(names) == 1 for names in identities), f"ranks of one host report different host identities: {identities}")
    check(len(set.union(*identities)) == hosts.num_hosts, f"two hosts report the same host identity: {identities}")

    for host in range(hosts.num_hosts):
        away = {"sent": 0, "received": 0}
        for report, run in zip(reports, runs):
            for peer, traffic in enumerate(report["peers"]):
                if run.host == host and runs[peer].host != host:
                    away["sent"] += traffic["bytes_sent"] + traffic["header_bytes_sent"]
                    away["received"] += traffic["bytes_received"]
        delta = {key: after[host][key] - before[host][key] for key in after[host]}
        counted = (away["sent"] + away["received"]) // 2
        for way in ("sent", "received"):
            seen = delta[f"{way}_bytes"]
            again = sum(a["retransmitted_segments"] - b["retransmitted_segments"] for a, b in zip(after, before))
            most = away[way] + counted // 10 + again * FRAME + SLACK
            check(away[way] <= seen <= most,
                  f"{transport}: host {host} {way} {seen} bytes; expected {away[way]} (counted by its ranks) to {most}")
        check(delta["delayed_packets"] > 0, f"{transport}: the rate limit of host {host} delayed no packets")
        print(f"{transport} {address}: host {host} sent {delta['sent_bytes']} bytes, its ranks counted {away['sent']} "
              f"({delta['sent_bytes'] / away['sent'] - 1:+.1%}), {delta['retransmitted_segments']} segments retransmitted")
    return reports


def main():
    program = sys.argv[1]
    try:
        with Hosts(2, rate="1gbit") as hosts:
            for address in ("10.77.0.0/24", "fd77::/64"):
                reports = exchange(hosts, program, "tcp", address)
                check({r["transport"] for r in reports} == {"tcp"}, f"transport: got {reports[0]['transport']}; expected tcp")
            reports = exchange(hosts, program, "auto", "10.77.0.0/24")
            check({r["transport"] for r in reports} == {"mixed"}, f"transport auto: got {reports[0]['transport']}; expected mixed")
            prefix = hosts.prefix
    except NotAllowed as error:
        print(f"skipped: {error}")
        return SKIP
    check(prefix not in sh("ip netns list"), "a network namespace was not removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
