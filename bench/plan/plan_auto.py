#!/usr/bin/env python3
"""Compares the layout that parallel.layout = "auto" chooses with every other possible layout.

    espalier plan calibrate --out this.toml
    bench/plan/plan_auto.py --cluster this.toml --model gpt-6x384 --batch 8 --micro-batch 2

The planner lists all possible layouts with its predictions. `espalier bench train --layout` runs them in batches, a few
steps of each in turn, so that disturbances of the machine affect all of them. Each batch contains the planner's choice, and
times are relative to its time in the same batch.
"""
import argparse
import json
import os
import re
import subprocess
import tempfile

KEYS = ("dp", "tp", "pp", "cp", "ep", "sequence", "context", "schedule", "interleave")


def run_file(arguments):
    return "\n".join(['[run]', 'name = "auto"', '[model]', f'preset = "{arguments.model}"',
                      *([f"seq_len = {arguments.seq}"] if arguments.seq else []),
                      '[data]', 'train = ["README.md"]', '[train]', f"global_batch = {arguments.batch}",
                      f"micro_batch = {arguments.micro_batch}", "steps = 10", ""])


def candidates(arguments, folder):
    """All layouts of arguments.nproc ranks, the one with the fastest prediction first."""
    path, out = os.path.join(folder, "run.toml"), os.path.join(folder, "search.json")
    with open(path, "w") as file:
        file.write(run_file(arguments))
    subprocess.run([arguments.espalier, "plan", "search", "--run", path, "--cluster", arguments.cluster, "--gpus",
                    str(arguments.nproc), "--method", "exhaustive", "--top", "10000", "--json", out],
                   check=True, stdout=subprocess.DEVNULL)
    with open(out) as file:
        return json.load(file)["top"]


def settings(layout):
    words = []
    for key in KEYS:
        value = layout[key]
        if key == "context" and layout["cp"] == 1 or key in ("schedule", "interleave") and layout["pp"] == 1:
            continue
        words.append(f"{key}={str(value).lower() if isinstance(value, bool) else value}")
    return ",".join(words + [f"train.micro_batch={layout['micro_batch']}"])


def measure(arguments, names, folder):
    out = os.path.join(folder, "train.json")
    command = [arguments.espalier, "bench", "train", "--model", arguments.model, "--batch", str(arguments.batch),
               "--nproc", str(arguments.nproc), "--steps", str(arguments.steps), "--rounds", str(arguments.rounds),
               "--warmup", "2", "--json", out]
    if arguments.seq:
        command += ["--seq", str(arguments.seq)]
    for name in names:
        command += ["--layout", name]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    taken = re.search(r"CPU time lost during the measurement: ([\d.]+) % to other programs", output)
    if taken:
        arguments.disturbed.append(float(taken.group(1)))
    with open(out) as file:
        rows = json.load(file)[1:]  # the first row is a single process
    return [row["step_ms_median"] for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--espalier", default="build/bin/espalier")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--model", default="gpt-6x384")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=0)
    parser.add_argument("--nproc", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--together", type=int, default=10, help="number of layouts per batch, measured in turn")
    parser.add_argument("--again", type=int, default=5, help="number of the fastest layouts that are measured a second time, in one batch")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.disturbed = []  # per batch: percentage of the CPU time that other programs used

    with tempfile.TemporaryDirectory() as folder:
        rows = candidates(arguments, folder)
        for row in rows:
            row["name"] = settings(row["layout"])
        chosen, others = rows[0], rows[1:]
        for at in range(0, len(others), arguments.together):
            batch = others[at:at + arguments.together]
            times = measure(arguments, [chosen["name"]] + [row["name"] for row in batch], folder)
            chosen.setdefault("times", []).append(times[0])
            for row, time in zip(batch, times[1:]):
                row["relative"], row["ms"] = time / times[0], time
        chosen["relative"], chosen["ms"] = 1.0, sorted(chosen["times"])[len(chosen["times"]) // 2]
        # The best of many single measurements is too fast by chance, so the fastest layouts are measured again; only that counts.
        fastest = sorted(others, key=lambda row: row["relative"])[:arguments.again]
        if fastest:
            arguments.rounds *= 2
            times = measure(arguments, [chosen["name"]] + [row["name"] for row in fastest], folder)
            for row, time in zip(fastest, times[1:]):
                row["relative"] = time / times[0]
    ranked = sorted(rows, key=lambda row: row["relative"])
    print(f"{arguments.model}, {arguments.batch} sequences, micro-batch {arguments.micro_batch}, "
          f"{arguments.nproc} ranks: {len(rows)} layouts")
    for row in ranked[:5] + [chosen] + ranked[-1:]:
        mark = "auto" if row is chosen else ""
        print(f"  {row['ms']:8.1f} ms  {row['relative']:6.3f}  predicted {1e3 * row['step_s']:8.1f} ms  "
              f"{row['policy']}  {mark}")
    regret = 1 / ranked[0]["relative"] - 1
    print(f"auto is {100 * regret:.1f} % slower than the best measured layout; other programs used up to "
          f"{max(arguments.disturbed, default=0):.0f} % of the CPU time during the measurement")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"model": arguments.model, "regret": regret, "disturbed": arguments.disturbed, "rows": ranked}, file, indent=1)


if __name__ == "__main__":
    main()
