"""Hosts that come and go: a job of 1 to 3 hosts (launchers on this machine) loses one, goes on with fewer, gains one,
and ends with every step made once, each of exactly the samples that a job left in peace shows the model in it. Three hosts
at first, two after the loss, three again.

    ESPALIER=build/bin/espalier python3 tests/faults/recover_elastic_test.py
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "app"))
from driving import ESPALIER, free_port, wait_until  # noqa: E402
from recover_driving import RUN, Job  # noqa: E402

STEPS = 1200


def host(folder, name, rank, port, secret):
    words = ["launch", "--nnodes", "1:3", "--nproc-per-node", "1", "--node-rank", str(rank), "--rdzv-endpoint",
             f"127.0.0.1:{port}", "--rdzv-id", "elastic", "--secret-file", secret, "--max-restarts", "3", "--", "train",
             os.path.join(folder, "run.toml"), "--run-dir", os.path.join(folder, name), "--set", "checkpoint.every=5",
             "--set", "log.samples=true", "--resume", "none"]  # which begins the job, and not each of its epochs
    return subprocess.Popen([ESPALIER, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def lines(path):
    try:
        with open(path) as file:
            return [json.loads(line) for line in file.read().splitlines(True) if line.endswith("\n")]
    except FileNotFoundError:
        return []


def samples(folder):
    """What the model was shown in each step, by all ranks: numbers of samples and fingerprints of their tokens. A step
    that was made again was shown the same again, or this set is larger than it should be."""
    shown = {}
    for path in glob.glob(os.path.join(folder, "samples/*.jsonl")):
        for line in lines(path):
            shown.setdefault(line["step"], set()).update(zip(line["samples"], line["rows"]))
    return shown


def main():
    folder = tempfile.mkdtemp(prefix="espalier-elastic-")
    hosts = []
    try:
        peace = Job(folder, "peace", STEPS, ["train.global_batch=12", "log.samples=true"], ranks=3)
        if peace.finish() != 0:
            sys.exit("".join(peace.said))
        with open(os.path.join(folder, "run.toml"), "w") as file:
            file.write(RUN.format(folder=folder, steps=STEPS).replace("global_batch = 16", "global_batch = 12"))
        secret = os.path.join(folder, "secret")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("0123456789abcdef0123456789abcdef")
        port = free_port()
        metrics = os.path.join(folder, "elastic/metrics.jsonl")


        def layouts():
            seen = []
            for line in lines(metrics):
                if not seen or seen[-1] != line["layout"]:
                    seen.append(line["layout"])
            return seen

        hosts = [host(folder, "elastic", rank, port, secret) for rank in range(3)]
        if not wait_until(lambda: len(lines(metrics)) >= 12 or hosts[0].poll() is not None):
            sys.exit("the job did not begin")
        hosts[2].send_signal(signal.SIGKILL)
        if not wait_until(lambda: len(layouts()) >= 2 or hosts[0].poll() is not None):
            sys.exit("it did not go on with two hosts")
        hosts.append(host(folder, "elastic", 2, port, secret))
        for one in (hosts[0], hosts[1], hosts[3]):
            _, said = one.communicate(timeout=100)
            if one.returncode != 0:
                sys.exit(f"a host ended with {one.returncode}:\n{said}")
        found = lines(metrics)
        steps = [line["step"] for line in found]
        wanted, shown = samples(peace.dir), samples(os.path.join(folder, "elastic"))
        wrong = [step for step in wanted if shown.get(step) != wanted[step]]
        print(f"layouts {' > '.join(layouts())}; {len(steps)} steps, of which {len(wrong)} with other samples than in peace")
        if steps != list(range(1, STEPS + 1)):
            sys.exit("not every step once")
        if len(layouts()) != 3 or layouts()[0] != layouts()[2]:
            sys.exit("it did not shrink and grow")
        if wrong or len(wanted) != STEPS:
            sys.exit("it learned from something else")
    finally:
        for one in hosts:
            if one.poll() is None:
                one.kill()
                one.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
