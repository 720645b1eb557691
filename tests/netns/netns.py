#!/usr/bin/env python3
"""Simulates several hosts on one machine: network namespaces joined by a bridge. tc tbf limits the rate of every link.

As a library:   with Hosts(num_hosts=2, rate="1gbit") as hosts: runs = hosts.run(command, ranks_per_host=2)
As a command:   netns.py --hosts 2 --ranks 2 --rate 1gbit -- command arguments...
                prints the output of every rank, then one line of JSON with each host's interface counters.

Ranks are numbered host by host and get RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and
MASTER_PORT. Host i has the addresses 10.77.0.(i+1) and fd77::(i+1) on its eth0. The bridge is in its own namespace, so
the network of the machine does not change. All namespaces are removed at the end, also after an error or a signal; the
next run removes those of a killed run.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time

SKIP = 77  # exit code: this machine does not allow namespaces


class NotAllowed(Exception):
    """The machine lacks a tool or the privilege to create network namespaces."""


def sh(command, check=True):
    done = subprocess.run(command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
    return done.stdout


def alive(pid):
    return os.path.exists(f"/proc/{pid}")


def remove_namespace(name):
    for pid in sh(f"ip netns pids {name}", check=False).split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    sh(f"ip netns del {name}", check=False)


def sweep():
    """Removes the network namespaces of processes that have ended."""
    for line in sh("ip netns list", check=False).splitlines():
        found = re.match(r"(esp-(\d+)-\S+)", line)
        if found and not alive(found.group(2)):
            remove_namespace(found.group(1))


class Run:
    """Result of one rank: its number, host, exit code and output."""

    def __init__(self, rank, host, process):
        self.rank, self.host, self.process = rank, host, process
        self.code, self.out, self.err = None, "", ""


class Hosts:
    def __init__(self, num_hosts, rate=None, burst="256kb", latency="400ms"):
        """`rate` in tc notation ("1gbit", "200mbit"), for each direction of each host's link; None: no limit."""
        self.num_hosts, self.rate, self.burst, self.latency = num_hosts, rate, burst, latency
        self.prefix = f"esp-{os.getpid()}"
        self.made = []

    def name(self, host):
        return f"{self.prefix}-h{host}"

    def address(self, host, ipv6=False):
        return f"fd77::{host + 1}" if ipv6 else f"10.77.0.{host + 1}"

    def __enter__(self):
        sweep()
        self.old_handlers = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            self._make()
        except Exception:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        for name in reversed(self.made):
            remove_namespace(name)
        self.made = []
        for which, handler in self.old_handlers.items():
            signal.signal(which, handler)

    def _on_signal(self, number, _frame):
        raise SystemExit(128 + number)  # unwinds through __exit__

    def _namespace(self, name):
        try:
            sh(f"ip netns add {name}")
        except (RuntimeError, FileNotFoundError) as error:
            raise NotAllowed(f"cannot create network namespaces: {error}")
        self.made.append(name)
        sh(f"ip -n {name} link set lo up")

    def _make(self):
        switch = f"{self.prefix}-sw"
        self._namespace(switch)
        try:
            sh(f"ip -n {switch} link add br0 type bridge")
            sh(f"ip -n {switch} link set br0 up")
        except RuntimeError as error:
            raise NotAllowed(f"cannot create a bridge: {error}")
        for host in range(self.num_hosts):
            name = self.name(host)
            self._namespace(name)
            try:
                sh(f"ip -n {switch} link add p{host} type veth peer name eth0 netns {name}")
            except RuntimeError as error:
                raise NotAllowed(f"cannot create a veth pair: {error}")
            sh(f"ip -n {switch} link set p{host} master br0 up")
            sh(f"ip -n {name} addr add {self.address(host)}/24 dev eth0")
            sh(f"ip -n {name} addr add fd77::{host + 1}/64 dev eth0 nodad")
            sh(f"ip -n {name} link set eth0 up")
            if self.rate:
                try:
                    for where, device in ((name, "eth0"), (switch, f"p{host}")):
                        sh(f"tc -n {where} qdisc add dev {device} root tbf "
                           f"rate {self.rate} burst {self.burst} latency {self.latency}")
                except (RuntimeError, FileNotFoundError) as error:
                    raise NotAllowed(f"cannot limit the rate of a link: {error}")

    def counters(self):
        """Per host: bytes and packets sent and received on eth0, TCP retransmissions, packets delayed by the rate limit."""
        result = []
        for host in range(self.num_hosts):
            name = self.name(host)
            stats = json.loads(sh(f"ip -n {name} -s -j link show dev eth0"))[0]["stats64"]
            snmp = [line.split() for line in sh(f"ip netns exec {name} cat /proc/net/snmp").splitlines()
                    if line.startswith("Tcp:")]
            delayed = 0
            for qdisc in json.loads(sh(f"tc -n {name} -s -j qdisc show dev eth0")):
                delayed += qdisc.get("overlimits", 0) if qdisc.get("kind") == "tbf" else 0
            result.append({"sent_bytes": stats["tx"]["bytes"], "received_bytes": stats["rx"]["bytes"],
                           "sent_packets": stats["tx"]["packets"], "received_packets": stats["rx"]["packets"],
                           "retransmitted_segments": int(snmp[1][snmp[0].index("RetransSegs")]), "delayed_packets": delayed})
        return result

    def run(self, command, ranks_per_host, timeout_s=60, env=None, port=29571, ipv6=False):
        """Runs the command once per rank and waits for all. A rank that exceeds the timeout is killed; its code is None."""
        runs = []
        size = self.num_hosts * ranks_per_host
        for rank in range(size):
            host, local = divmod(rank, ranks_per_host)
            own = dict(os.environ, **(env or {}), RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(local),
                       LOCAL_WORLD_SIZE=str(ranks_per_host), NODE_RANK=str(host), MASTER_ADDR=self.address(0, ipv6),
                       MASTER_PORT=str(port))
            runs.append(Run(rank, host, subprocess.Popen(["ip", "netns", "exec", self.name(host), *command], env=own,
                                                         text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)))
        deadline = time.monotonic() + timeout_s
        for run in runs:
            try:
                run.out, run.err = run.process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                run.code = run.process.returncode
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.out, run.err = run.process.communicate()
        return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts")
    parser.add_argument("--ranks", type=int, default=2, help="ranks per host")
    parser.add_argument("--rate", help="rate of each link in tc notation; default: no limit")
    parser.add_argument("--timeout", type=float, default=60, help="time limit in seconds")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        with Hosts(options.hosts, options.rate) as hosts:
            before = hosts.counters()
            runs = hosts.run(options.command, options.ranks, options.timeout)
            after = hosts.counters()
    except NotAllowed as error:
        print(f"skipped: {error}", file=sys.stderr)
        return SKIP
    for run in runs:
        sys.stdout.write(run.out)
        sys.stderr.write(run.err)
    print(json.dumps([{key: b[key] - a[key] for key in b} for a, b in zip(before, after)]))
    return 0 if all(run.code == 0 for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
