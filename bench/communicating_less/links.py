#!/usr/bin/env python3
"""links.py: measures when less communication saves time. Two hosts (network namespaces), with a link shaped by tc tbf, train
the same model until the mean training loss of some steps reaches a target. The clock starts at the end of the first step.

  sudo bench/communicating_less/links.py                      100 Mbit/s and 1 Gbit/s, one rank per host
  … links.py --rates 100mbit --target 3.7 --limit 30           short form

Prints a Markdown table per link rate. Needs root for the namespaces, which it removes at the end. All methods use the same
model, samples, schedule and optimizer (momentum SGD, for which all of them are defined); the number of steps may differ.
"""
import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from harness import ESPALIER, ROOT, bytes_sent, markdown, metrics, settings, write_text

sys.path.insert(0, str(ROOT / "tests/netns"))
from netns import SKIP, Hosts, NotAllowed  # noqa: E402

RUN = """
[run]
name = "link"
threads = 1
[model]
arch = "gpt"
layers = 2
heads = 4
dim = 192
seq_len = 64
[data]
train = "{text}"
val_fraction = 0.02
cache = "{cache}"
[train]
steps = 100000
global_batch = 8
optimizer = "sgd"
lr = 0.3
warmup = 10
schedule = "constant"
weight_decay = 0
eval_batches = 1
[comm]
transport = "tcp"
[checkpoint]
resume = "none"
[log]
every = 1
tensorboard = false
"""

METHODS = {
    "PSGD": {},
    "DSGD, one peer": {"sync.method": "gossip", "sync.topology": "one_peer"},
    "Local SGD, τ = 8": {"sync.method": "local", "sync.tau": 8},
    "Local SGD, τ = 32": {"sync.method": "local", "sync.tau": 32},
    "int8": {"sync.compress": "int8", "sync.feedback": "ef"},
    "Top-K 1 %, EF": {"sync.compress": "topk:0.01", "sync.feedback": "ef"},
    "Top-K 5 %, EF": {"sync.compress": "topk:0.05", "sync.feedback": "ef"},
    "PowerSGD, r = 4": {"sync.compress": "powersgd:4"},
}


def reached(lines, target, window):
    """Seconds since the end of the first step, and number of steps, until the mean loss reaches the target; None: not reached."""
    for end in range(window, len(lines) + 1):
        if sum(line["loss"] for line in lines[end - window:end]) / window <= target:
            return lines[end - 1]["mono_s"] - lines[0]["mono_s"], lines[end - 1]["step"]
    return None


def run(hosts, ranks, run_file, folder, values, options):
    """Trains until the target is reached or time is up, then ends the ranks with a signal."""
    secret = folder.parent / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    size = hosts.num_hosts * ranks
    processes = []
    for rank in range(size):
        host, local = divmod(rank, ranks)
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(local),
                           LOCAL_WORLD_SIZE=str(ranks), NODE_RANK=str(host), MASTER_ADDR=hosts.address(0),
                           MASTER_PORT="29571", ESPALIER_SECRET_FILE=str(secret))
        processes.append(subprocess.Popen(
            ["ip", "netns", "exec", hosts.name(host), ESPALIER, "train", str(run_file), "--run-dir", str(folder),
             *settings(values)], env=environment, stdout=subprocess.DEVNULL, stderr=open(f"{folder}.err{rank}", "w")))
    begun, answer = time.monotonic(), None
    while time.monotonic() - begun < options.limit and answer is None:
        if any(process.poll() is not None for process in processes):
            raise RuntimeError(f"{folder.name} ended before it reached the target:\n{pathlib.Path(f'{folder}.err0').read_text()[-2000:]}")
        time.sleep(0.25)
        if (folder / "metrics.jsonl").exists():
            answer = reached(metrics(folder), options.target, options.window)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait(timeout=60)
    return answer, metrics(folder)


def table(rate, run_file, folder, options):
    rows, first = [], None
    with Hosts(2, rate) as hosts:
        for name, values in METHODS.items():
            if options.only and not any(word in name for word in options.only):
                continue
            where = folder / f"{rate}-{len(rows)}"
            answer, lines = run(hosts, options.ranks, run_file, where, values, options)
            per_step = (lines[-1]["mono_s"] - lines[0]["mono_s"]) / max(1, len(lines) - 1)
            sent = bytes_sent(where) / lines[-1]["step"]
            if answer is None:
                tail = lines[-options.window:]
                mean = sum(line["loss"] for line in tail) / len(tail)
                rows.append([name, f"{sent / 1e6:.3f}", f"{1e3 * per_step:.0f}", f"> {lines[-1]['step']}",
                             f"> {options.limit:.0f} (at {mean:.2f})", ""])
            else:
                seconds, steps = answer
                first = first or (seconds if name == "PSGD" else None)
                rows.append([name, f"{sent / 1e6:.3f}", f"{1e3 * per_step:.0f}", str(steps), f"{seconds:.1f}",
                             f"{first / seconds:.1f}×" if first else ""])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    head = ["method", "MB sent per rank and step", "ms per step", f"steps to {options.target}", "seconds", "speed-up over PSGD"]
    return f"{rate}, 2 hosts × {options.ranks}\n\n" + markdown(head, rows) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit"], help="link rates, in the notation of tc")
    parser.add_argument("--ranks", type=int, default=1, help="ranks per host")
    parser.add_argument("--target", type=float, default=3.4, help="target training loss, in nats per byte")
    parser.add_argument("--window", type=int, default=20, help="number of steps over which the loss is averaged")
    parser.add_argument("--limit", type=float, default=120, help="time limit of a run, in seconds")
    parser.add_argument("--only", nargs="+", help="only methods whose names contain one of these words")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="esp-links-") as name:
        folder = pathlib.Path(name)
        print(write_text(folder / "text.txt"), file=sys.stderr)
        run_file = folder / "run.toml"
        run_file.write_text(RUN.format(text=folder / "text.txt", cache=folder / "cache"))
        try:
            for rate in options.rates:
                print(table(rate, run_file, folder, options), flush=True)
        except NotAllowed as error:
            print(f"skipped: {error}")
            return SKIP
    return 0


if __name__ == "__main__":
    sys.exit(main())
