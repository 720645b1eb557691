"""Runs the espalier binary for tests: with a time limit, and without a terminal by default."""
import os
import random
import socket
import subprocess
import time

ESPALIER = os.environ.get("ESPALIER", "build/bin/espalier")
LIMIT_S = 100
LAB_LIMIT_S = 250  # longer, because a lab runs many ranks and the machine may be loaded


def run(*arguments, env=None, limit=LIMIT_S):
    environment = dict(os.environ, **(env or {}))
    return subprocess.run([ESPALIER, *arguments], capture_output=True, text=True, timeout=limit, env=environment)


def start(*arguments, env=None):
    return subprocess.Popen([ESPALIER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, **(env or {})))


def free_ports(number):
    """Free ports below the ephemeral port range, so that no outgoing connection takes a port before the test uses it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        end = int(file.read().split()[0])
    free = set()
    while len(free) < number:
        port = random.randrange(min(10000, end // 2), end)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                free.add(port)
            except OSError:
                pass
    return sorted(free)


def free_port():
    return free_ports(1)[0]


def children(pid):
    """Ids of the child processes of `pid`, read from /proc."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(name))
    return sorted(found)


def rank_of(pid):
    """RANK in the environment of a process; None: not set, or the process has ended."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for word in file.read().split(b"\0"):
                if word.startswith(b"RANK="):
                    return int(word[5:])
    except OSError:
        pass
    return None


def ranks_of(pid):
    """Process ids of the ranks that `pid` started, in order of rank (not of process id)."""
    found = {rank_of(child): child for child in children(pid)}
    return {rank: found[rank] for rank in sorted(rank for rank in found if rank is not None)}


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, limit=60):
    """Polls until the condition holds (True) or the limit has passed (False)."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()
