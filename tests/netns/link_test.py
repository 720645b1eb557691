#!/usr/bin/env python3
"""link_test.py ESPALIER: network interruptions between two hosts of 2 ranks each during training. After interruptions of 1
and 5 s (ESPALIER_TEST_LONG=1: also 15 s) all losses must be bit-identical, and no rank may be restarted. A permanent
interruption must end the run with exit code 3 after comm.link_timeout_s (4 s here; long form: also the default of 30 s), and
the error must name the host.

Also tests that the ranks rendezvous while another program occupies MASTER_PORT.

Each host has its own host name (a UTS namespace), so that messages identify it. Prints the time until the next step.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from netns import SKIP, Hosts, NotAllowed, sh

LONG = os.environ.get("ESPALIER_TEST_LONG") == "1"
LIMIT_S = 120
RUN = """
[run]
name = "link"
threads = 1
[model]
arch = "gpt"
layers = 2
heads = 2
dim = 32
seq_len = 32
[data]
train = "{folder}/text.txt"
cache = "{folder}/cache"
[train]
steps = 400
global_batch = 8
eval_every = 0
[checkpoint]
every = 0
[log]
tensorboard = false
"""


def check(condition, text):
    if not condition:
        raise AssertionError(text)


class Network(Hosts):
    def set_link(self, host, way):
        sh(f"ip -n {self.prefix}-sw link set p{host} {way}")

    def start(self, host, command, env):
        named = ["unshare", "--uts", "sh", "-c", f'hostname host{host}; exec "$@"', "sh", *map(str, command)]
        return subprocess.Popen(["ip", "netns", "exec", self.name(host), *named], env=dict(os.environ, **env), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ranks(self, espalier, folder, name, port, *words):
        """Starts the ranks one by one, as torchrun does."""
        secret = {"ESPALIER_SECRET_FILE": str(folder / "secret")}
        return [self.start(rank // 2, [espalier, "train", folder / "run.toml", "--run-dir", folder / name, *words],
                           {**secret, "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
                            "MASTER_ADDR": self.address(0), "MASTER_PORT": str(port)}) for rank in range(4)]

    def launchers(self, espalier, folder, name, port, *words):
        """Starts `espalier launch` on each host. The launcher would restart failed ranks, so a restart would be visible."""
        return [self.start(host, [espalier, "launch", "--nnodes", "2", "--node-rank", str(host), "--nproc-per-node", "2",
                                  "--rdzv-endpoint", f"{self.address(0)}:{port}", "--secret-file", folder / "secret",
                                  "--max-restarts", "3", "--", "train", folder / "run.toml", "--run-dir", folder / name, *words],
                           {}) for host in range(2)]


def losses(folder, name):
    path = folder / name / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line)["loss"] for line in path.read_text().splitlines() if line.endswith("}")]


def wait_for_steps(folder, name, steps, processes):
    until = time.monotonic() + LIMIT_S
    while len(losses(folder, name)) < steps and time.monotonic() < until:
        if any(process.poll() is not None for process in processes):
            break
        time.sleep(0.02)


def wait_for_exit(processes):
    return [(process.communicate(timeout=LIMIT_S)[1], process.returncode) for process in processes]


def run_with_interruption(network, start, folder, name, seconds):
    """Runs the training and takes the link of host 1 down for `seconds`. Returns all output."""
    processes = start(folder, name)
    try:
        wait_for_steps(folder, name, 5, processes)
        network.set_link(1, "down")
        time.sleep(0.1)
        before = len(losses(folder, name))
        time.sleep(seconds - 0.1)
        during = len(losses(folder, name))
        network.set_link(1, "up")
        back = time.monotonic()
        wait_for_steps(folder, name, during + 1, processes)
        resumed = time.monotonic() - back
        ends = wait_for_exit(processes)
    finally:
        network.set_link(1, "up")
        for process in processes:
            process.kill()
    for text, code in ends:
        check(code == 0, f"{name}: exit code {code}\n{text}")
        check("restart" not in text, text)
    check(before < 400 and during <= before + 1, f"{name}: {before} steps before, {during} during the interruption")
    check(json.loads((folder / name / "summary.json").read_text())["restarts"] == 0, f"{name} was restarted")
    print(f"{name}: link down for {seconds} s after {before} steps; next step {resumed:.1f} s after it was up again", flush=True)
    return "".join(text for text, _ in ends)


def run_with_permanent_cut(network, start, folder, name, timeout_s):
    processes = start(folder, name)
    try:
        wait_for_steps(folder, name, 5, processes)
        network.set_link(1, "down")
        began = time.monotonic()
        ends = wait_for_exit(processes)
        took = time.monotonic() - began
    finally:
        network.set_link(1, "up")
        for process in processes:
            process.kill()
    for number, (text, code) in enumerate(ends):
        check(code == 3, f"{name}: exit code {code}\n{text}")
        other = 0 if number >= len(ends) // 2 else 1
        check(f"host host{other}: no data for " in text or f"host {network.address(other)}: no data for " in text,
              f"{name}: the error does not name host{other}\n{text}")
    print(f"{name}: all ranks named the host and ended {took:.1f} s after the link was cut, link_timeout_s = {timeout_s:g}", flush=True)


def run_with_occupied_port(network, start, folder, name, port):
    """Another program occupies MASTER_PORT on the first host: the ranks of both hosts still rendezvous."""
    program = (f"import socket, sys; s = socket.socket(); s.bind(('0.0.0.0', {port})); s.listen(); print('up', flush=True); "
               "sys.stdin.read()")
    owner = subprocess.Popen(["ip", "netns", "exec", network.name(0), sys.executable, "-c", program], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    try:
        check(owner.stdout.readline() == "up\n", f"cannot listen on port {port}")
        for text, code in wait_for_exit(start(folder, name)):
            check(code == 0, f"{name}: exit code {code}\n{text}")
    finally:
        owner.communicate()


def main():
    espalier = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="esp-link-") as made:
        folder = pathlib.Path(made)
        (folder / "text.txt").write_text("the rain in Spain stays mainly in the plain, and so it goes. " * 400)
        (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
        (folder / "secret").chmod(0o600)
        (folder / "run.toml").write_text(RUN.format(folder=folder))
        try:
            with Network(2) as network:
                port = iter(range(29600, 29700))
                by_rank = lambda *words: lambda folder, name: network.ranks(espalier, folder, name, next(port), *words)
                by_host = lambda *words: lambda folder, name: network.launchers(espalier, folder, name, next(port), *words)
                uninterrupted = by_rank()(folder, "whole")
                check([code for _, code in wait_for_exit(uninterrupted)] == [0] * 4, "the uninterrupted run failed")
                run_with_occupied_port(network, lambda *where: network.ranks(espalier, *where, 29700), folder, "beside", 29700)
                check(losses(folder, "beside") == losses(folder, "whole"), "occupied port: losses differ from those of the uninterrupted run")
                for seconds in [1, 5] + ([15] if LONG else []):
                    for name, start in ((f"ranks-{seconds}", by_rank()), (f"launched-{seconds}", by_host())):
                        output = run_with_interruption(network, start, folder, name, seconds)
                        check(losses(folder, name) == losses(folder, "whole"), f"{name}: losses differ from those of the uninterrupted run")
                        check(seconds < 5 or ": no data for " in output, f"{name}: the interruption was not reported\n{output}")
                short = ["--set", "comm.link_timeout_s=4"]
                run_with_permanent_cut(network, by_rank(*short), folder, "cut-ranks", 4)
                run_with_permanent_cut(network, by_host(*short), folder, "cut-launched", 4)
                if LONG:
                    run_with_permanent_cut(network, by_host(), folder, "cut-default", 30)
        except NotAllowed as error:
            print(f"skipped: {error}")
            return SKIP
    return 0


if __name__ == "__main__":
    sys.exit(main())
