"""Elastic job on 3 hosts (launchers on this machine): it loses a host, continues with 2, and grows to 3 again. Every step must
be logged exactly once and use the samples that a run without faults uses in that step.

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
from cli_runner import ESPALIER, free_port, wait_until  # noqa: E402
from recover_driving import RUN, Job  # noqa: E402

STEPS = 1200


def host(folder, name, rank, port, secret):
    words = ["launch", "--nnodes", "1:3", "--nproc-per-node", "1", "--node-rank", str(rank), "--rdzv-endpoint",
             f"127.0.0.1:{port}", "--rdzv-id", "elastic", "--secret-file", secret, "--max-restarts", "3", "--", "train",
             os.path.join(folder, "run.toml"), "--run-dir", os.path.join(folder, name), "--set", "checkpoint.every=5",
             "--set", "log.samples=true", "--resume", "none"]  # applies to the start of the job, not to each epoch
    return subprocess.Popen([ESPALIER, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def lines(path):
    try:
        with open(path) as file:
            return [json.loads(line) for line in file.read().splitlines(True) if line.endswith("\n")]
    except FileNotFoundError:
        return []


def samples(folder):
    """Sample numbers and token fingerprints of each step, over all ranks. A repeated step must have used the same samples;
    otherwise this set is larger than expected."""
    shown = {}
    for path in glob.glob(os.path.join(folder, "samples/*.jsonl")):
        for line in lines(path):
            shown.setdefault(line["step"], set()).update(zip(line["samples"], line["rows"]))
    return shown


def main():
    folder = tempfile.mkdtemp(prefix="espalier-elastic-")
    hosts = []
    try:
        faultless = Job(folder, "faultless", STEPS, ["train.global_batch=12", "log.samples=true"], ranks=3)
        if faultless.finish() != 0:
            sys.exit("".join(faultless.said))
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
            sys.exit("the job did not reach step 12")
        hosts[2].send_signal(signal.SIGKILL)
        if not wait_until(lambda: len(layouts()) >= 2 or hosts[0].poll() is not None):
            sys.exit("the job did not continue with two hosts")
        hosts.append(host(folder, "elastic", 2, port, secret))
        for one in (hosts[0], hosts[1], hosts[3]):
            _, output = one.communicate(timeout=100)
            if one.returncode != 0:
                sys.exit(f"a host ended with exit code {one.returncode}:\n{output}")
        found = lines(metrics)
        steps = [line["step"] for line in found]
        wanted, shown = samples(faultless.dir), samples(os.path.join(folder, "elastic"))
        wrong = [step for step in wanted if shown.get(step) != wanted[step]]
        print(f"layouts {' > '.join(layouts())}; {len(steps)} steps, {len(wrong)} of them with other samples than in the run without faults")
        if steps != list(range(1, STEPS + 1)):
            sys.exit("a step is missing or repeated")
        if len(layouts()) != 3 or layouts()[0] != layouts()[2]:
            sys.exit("the layout did not change to two hosts and back to three")
        if wrong or len(wanted) != STEPS:
            sys.exit("the samples differ from those of the run without faults")
    finally:
        for one in hosts:
            if one.poll() is None:
                one.kill()
                one.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
