#!/usr/bin/env python3
"""Measures the cost of automatic snapshots and checkpoints under `espalier launch`: the same run with and without them, in turn.

    python3 bench/checkpoint_overhead.py --espalier build/bin/espalier --seconds 90 --pairs 5

Prints the steps per second of each run between two steps of its log (checkpoints included), the median ratio of the pairs,
and the fraction of time that the run itself measured for saves (summary.json: periodic_saves). The ratio needs an idle
machine; the measured fraction hardly depends on other load.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

RUN = """
[run]
seed = 1
threads = 1
[model]
arch = "gpt"
layers = {layers}
heads = 4
dim = {dim}
seq_len = 128
[data]
train = "{folder}/text.txt"
[train]
steps = 1000000
global_batch = 8
max_minutes = {minutes}
[log]
tensorboard = false
"""
OFF = ["--set", "checkpoint.every=0", "--set", "checkpoint.snapshot_every=0"]
WARM_UP = 5  # steps


def one(options, folder, name, settings):
    path = os.path.join(folder, name)
    command = [options.espalier, "launch", "--nproc-per-node", str(options.ranks), "--", "train",
               os.path.join(folder, "run.toml"), "--run-dir", path]
    subprocess.run(command + settings, check=True, capture_output=True)
    with open(path + "/metrics.jsonl") as file:
        lines = [json.loads(line) for line in file]
    with open(path + "/summary.json") as file:
        saves = json.load(file)["periodic_saves"]
    first, last = lines[WARM_UP], lines[-1]
    seconds = last["mono_s"] - first["mono_s"]
    return (last["step"] - first["step"]) / seconds, saves, saves["cost_s"] / (last["mono_s"] - lines[0]["mono_s"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--espalier", default="build/bin/espalier")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    options = parser.parse_args()
    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/text.txt", "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 4000)
        with open(folder + "/run.toml", "w") as file:
            file.write(RUN.format(folder=folder, minutes=options.seconds / 60, layers=options.layers, dim=options.dim))
        for pair in range(options.pairs):
            order = [("with", []), ("without", OFF)]
            found = {name: one(options, folder, f"{name}-{pair}", settings)
                     for name, settings in (order if pair % 2 == 0 else order[::-1])}
            rate, saves, share = found["with"]
            ratios.append(rate / found["without"][0])
            shares.append(share)
            print(f"pair {pair + 1}: {rate:.2f} steps/s with, {found['without'][0]:.2f} without: ratio {ratios[-1]:.4f}; "
                  f"{saves['snapshots']} snapshots and {saves['checkpoints']} checkpoints took {share * 100:.2f} % of the time",
                  flush=True)
    print(f"median ratio {statistics.median(ratios):.4f} (1: no cost); median fraction of time spent on saves "
          f"{statistics.median(shares) * 100:.2f} %, target at most 1 %")


if __name__ == "__main__":
    main()
