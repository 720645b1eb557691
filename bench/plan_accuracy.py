#!/usr/bin/env python3
"""Compares predicted with measured step times and memory of Espalier on this machine.

    espalier plan calibrate --out this.toml
    bench/plan_accuracy.py measure --espalier build/bin/espalier --out rows.json [--part 1/3]
    bench/plan_accuracy.py compare --espalier build/bin/espalier --cluster this.toml --rows rows.json [--markdown FILE]

`measure` trains a few models with layouts of 1 to 4 ranks (`espalier train`) and records the lower quartile of the step times and
the peak bytes allocated on any rank. `compare` runs `espalier plan estimate` on the same run files.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SMALL = {"model.arch": "gpt", "model.layers": 4, "model.heads": 8, "model.dim": 256, "model.vocab": 256,
         "model.seq_len": 128, "train.global_batch": 16}
DEEP = {"model.arch": "gpt", "model.layers": 8, "model.heads": 6, "model.dim": 192, "model.vocab": 256,
        "model.seq_len": 128, "train.global_batch": 16}
LLAMA = {"model.arch": "llama", "model.layers": 4, "model.heads": 8, "model.kv_heads": 4, "model.dim": 256,
         "model.ffn": 704, "model.vocab": 256, "model.seq_len": 256, "train.global_batch": 8}
MODELS = {"gpt-4x256": SMALL, "gpt-8x192": DEEP, "llama-4x256": LLAMA}

LAYOUTS = [
    ("one", 1, {}),
    ("one, micro-batch 2", 1, {"train.micro_batch": 2}),
    ("one, recompute full", 1, {"train.recompute": "full"}),
    ("one, bf16", 1, {"train.precision": "bf16"}),
    ("dp 2", 2, {"parallel.dp": 2}),
    ("dp 4", 4, {"parallel.dp": 4}),
    ("dp 2, zero1", 2, {"parallel.dp": 2, "sync.method": "zero1"}),
    ("dp 2, zero2", 2, {"parallel.dp": 2, "sync.method": "zero2"}),
    ("dp 2, zero3", 2, {"parallel.dp": 2, "sync.method": "zero3"}),
    ("dp 4, zero3", 4, {"parallel.dp": 4, "sync.method": "zero3"}),
    ("tp 2", 2, {"parallel.tp": 2}),
    ("tp 2, sequence", 2, {"parallel.tp": 2, "parallel.sequence": "true"}),
    ("tp 4", 4, {"parallel.tp": 4}),
    ("pp 2", 2, {"parallel.pp": 2, "train.micro_batch": 2}),
    ("pp 2, gpipe", 2, {"parallel.pp": 2, "train.micro_batch": 2, "parallel.schedule": "gpipe"}),
    ("pp 4", 4, {"parallel.pp": 4, "train.micro_batch": 2}),
    ("cp 2", 2, {"parallel.cp": 2}),
    ("cp 2, ulysses", 2, {"parallel.cp": 2, "parallel.context": "ulysses"}),
    ("tp 2, dp 2", 4, {"parallel.tp": 2, "parallel.dp": 2}),
    ("pp 2, dp 2", 4, {"parallel.pp": 2, "parallel.dp": 2, "train.micro_batch": 2}),
    ("tp 2, pp 2", 4, {"parallel.tp": 2, "parallel.pp": 2, "train.micro_batch": 2}),
    ("cp 2, dp 2", 4, {"parallel.cp": 2, "parallel.dp": 2}),
]


def cases():
    """All layouts of the first model, and every third layout of the others."""
    for m, (model, shape) in enumerate(MODELS.items()):
        for i, (name, ranks, layout) in enumerate(LAYOUTS):
            if m == 0 or (i + m) % 3 == 0:
                yield {"model": model, "layout": name, "ranks": ranks, "settings": {**shape, **layout}}


def settings_of(case):
    return [word for key, value in case["settings"].items() for word in ("--set", f"{key}={value}")]


def run_file(folder):
    text = os.path.join(folder, "text.txt")
    if not os.path.exists(text):
        with open(text, "w") as file:
            file.write(" ".join(f"word{i * 7919 % 10007}" for i in range(60000)))
    path = os.path.join(folder, "run.toml")
    with open(path, "w") as file:
        file.write(f'[run]\nname = "accuracy"\n[data]\ntrain = ["{text}"]\ntokenizer = "byte"\n'
                   '[train]\nschedule = "constant"\noptimizer = "adamw"\n[log]\nevery = 1\n')
    return path


def measure(espalier, case, folder, steps):
    out = os.path.join(folder, "run")
    subprocess.run(["rm", "-rf", out], check=True)
    command = [espalier, "train", run_file(folder), "--nproc", str(case["ranks"]), "--run-dir", out,
               "--set", f"train.steps={steps}", *settings_of(case)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if result.returncode != 0:
        raise SystemExit(f"{case['model']} {case['layout']}: {result.stderr[-400:]}")
    lines = []
    for root, _, files in os.walk(out):
        for name in files:
            if name == "metrics.jsonl":
                with open(os.path.join(root, name)) as file:
                    lines += [json.loads(line) for line in file]
    times = [line["step_ms"] for line in lines if "step_ms" in line and line.get("step", 0) >= 3]
    peaks = [line.get("memory_bytes", 0) for line in lines]
    quiet = sorted(times)[len(times) // 4]  # lower quartile: other programs only make steps longer
    return {**case, "step_s": quiet * 1e-3, "peak_bytes": max(peaks)}


def predict(espalier, cluster, case, folder):
    out = os.path.join(folder, "estimate.json")
    command = [espalier, "plan", "estimate", "--run", run_file(folder), "--cluster", cluster, "--gpus",
               str(case["ranks"]), "--json", out, *settings_of(case)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if result.returncode != 0:
        raise SystemExit(f"{case['model']} {case['layout']}: {result.stderr[-400:]}")
    with open(out) as file:
        return json.load(file)


def compare(arguments, rows, folder):
    lines, errors, memory = [], [], []
    for row in rows:
        predicted = predict(arguments.espalier, arguments.cluster, row, folder)
        error = predicted["step_s"] / row["step_s"] - 1
        errors.append(abs(error))
        predicted_bytes = predicted["memory_bytes"]["total"]
        memory_error = predicted_bytes / row["peak_bytes"] - 1 if row["peak_bytes"] else float("nan")
        memory.append(memory_error)
        lines.append(f"| {row['model']} | {row['layout']} | {row['ranks']} | {row['step_s'] * 1e3:.1f} | "
                     f"{predicted['step_s'] * 1e3:.1f} | {100 * error:+.1f} % | {row['peak_bytes'] / 2**20:.1f} | "
                     f"{predicted_bytes / 2**20:.1f} | {100 * memory_error:+.1f} % |")
    head = ["| model | layout | ranks | measured ms | predicted ms | error | measured MiB | predicted MiB | error |",
            "|---|---|---|---|---|---|---|---|---|"]
    known = [memory_error for memory_error in memory if memory_error == memory_error]
    summary = (f"{len(rows)} runs: mean error of the step time {100 * statistics.mean(errors):.1f} %, median "
               f"{100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %; memory from "
               f"{100 * min(known):+.2f} % to {100 * max(known):+.2f} %" if known else "no memory measured")
    text = "\n".join(head + lines) + f"\n\n{summary}\n"
    print(text)
    if arguments.markdown:
        with open(arguments.markdown, "w") as file:
            file.write(text)
    return statistics.mean(errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "compare", "list"])
    parser.add_argument("--espalier", default="build/bin/espalier")
    parser.add_argument("--cluster", help="file written by `espalier plan calibrate`")
    parser.add_argument("--rows", help="file written by `measure`")
    parser.add_argument("--out", default="rows.json")
    parser.add_argument("--markdown")
    parser.add_argument("--part", default="1/1", help="k/n: every n-th case from the k-th on, added to --out")
    parser.add_argument("--only", help="only layouts whose name contains this text")
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    every = list(cases())
    if arguments.what == "list":
        for case in every:
            print(case["ranks"], case["model"], case["layout"])
        return
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "compare":
            with open(arguments.rows) as file:
                compare(arguments, json.load(file), folder)
            return
        k, n = map(int, arguments.part.split("/"))
        rows = []
        if os.path.exists(arguments.out):
            with open(arguments.out) as file:
                rows = json.load(file)
        for case in every[k - 1::n]:
            if arguments.only and arguments.only not in case["layout"]:
                continue
            rows = [row for row in rows if (row["model"], row["layout"]) != (case["model"], case["layout"])]
            rows.append(measure(arguments.espalier, case, folder, arguments.steps))
            print(f"{case['model']:12} {case['layout']:22} {rows[-1]['step_s'] * 1e3:8.1f} ms", flush=True)
            with open(arguments.out, "w") as file:
                json.dump(rows, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
