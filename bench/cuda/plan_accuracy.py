#!/usr/bin/env python3
"""Compares predicted with measured step times and memory on one GPU (bench/plan_accuracy.py: on CPUs).

    bench/cuda/plan_accuracy.py predict --espalier build/bin/espalier --cluster one-h200 --out predicted.json
    bench/cuda/plan_accuracy.py measure --espalier build-cuda/bin/espalier --rows predicted.json --out rows.json
    bench/cuda/plan_accuracy.py compare --rows rows.json

`predict` runs first and needs no GPU. `measure` trains with the same run files and adds the lower quartile of the step times
and the peak bytes allocated. `compare` prints both.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

GPT = {"model.seq_len": 1024, "model.vocab": 50304}
LLAMA = {"model.seq_len": 4096, "model.vocab": 32000}


def case(name, preset, batch, micro=None, precision="bf16", recompute="none", **more):
    shape = LLAMA if "llama" in preset else GPT
    return {"name": name, "settings": {
        "model.preset": preset, **shape, "train.global_batch": batch, "train.micro_batch": micro or batch,
        "train.precision": precision, "train.recompute": recompute, "run.device": "cuda", **more}}


# The catalog's figures were fitted to the first set; the second set was not used for fitting.
SETS = {
    "seen": [
        case("124M, 64", "gpt2-124m", 64), case("355M, 32", "gpt2-355m", 32), case("774M, 16", "gpt2-774m", 16),
        case("1558M, 16", "gpt2-1558m", 16), case("LLaMA 1.1B, 4", "llama-1.1b", 4),
        case("124M, 16, tf32", "gpt2-124m", 16, precision="tf32"),
        case("355M, 32, recompute selective", "gpt2-355m", 32, recompute="selective"),
        case("774M, 16, recompute full", "gpt2-774m", 16, recompute="full"),
        case("1558M, 8 of 16", "gpt2-1558m", 16, micro=8),
        case("124M, 8, fp32", "gpt2-124m", 8, precision="fp32")],
    "unseen": [
        case("124M, 32", "gpt2-124m", 32), case("124M, 8 of 64", "gpt2-124m", 64, micro=8),
        case("355M, 16, recompute full", "gpt2-355m", 16, recompute="full"), case("355M, 8", "gpt2-355m", 8),
        case("774M, 32", "gpt2-774m", 32), case("774M, 8 of 32, recompute selective", "gpt2-774m", 32, 8, recompute="selective"),
        case("1558M, 32, recompute full", "gpt2-1558m", 32, recompute="full"),
        case("LLaMA 1.1B, 8, recompute selective", "llama-1.1b", 8, recompute="selective"),
        case("LLaMA 1.1B, 2", "llama-1.1b", 2), case("1558M, 16, fp8", "gpt2-1558m", 16, precision="fp8")],
}


def run_file(folder):
    path = os.path.join(folder, "run.toml")
    with open(path, "w") as file:
        file.write('[run]\nname = "accuracy"\n[data]\ntrain = ["docs"]\ntokenizer = "byte"\n[train]\nschedule = "constant"\n'
                   'optimizer = "adamw"\nsteps = 1000\n[log]\nevery = 1\n')
    return path


def settings_of(row):
    return [word for key, value in row["settings"].items() for word in ("--set", f"{key}={value}")]


def predict(espalier, cluster, row, folder):
    out = os.path.join(folder, "estimate.json")
    subprocess.run([espalier, "plan", "estimate", "--run", run_file(folder), "--cluster", cluster, "--gpus", "1",
                    "--json", out, *settings_of(row)], check=True, capture_output=True, timeout=60)
    with open(out) as file:
        estimate = json.load(file)
    return {**row, "predicted_s": estimate["step_s"], "predicted_bytes": estimate["memory_bytes"]["total"]}


def measure(espalier, row, folder, steps, timeout):
    """Runs the first steps and stops the run: its checkpoint would take longer than the steps."""
    out = tempfile.mkdtemp(dir=folder)
    with open(os.path.join(out, "log"), "w+") as log:
        process = subprocess.Popen([espalier, "train", run_file(folder), "--run-dir", out + "/run", "--resume", "none",
                                    "--set", "train.eval_every=0", *settings_of(row)], stdout=log, stderr=log)
        lines, until = [], time.time() + timeout
        while len(lines) < steps and time.time() < until and process.poll() is None:
            time.sleep(0.1)
            if os.path.exists(out + "/run/metrics.jsonl"):
                lines = [json.loads(l) for l in open(out + "/run/metrics.jsonl") if l.endswith("\n")]
        process.kill()
        process.wait()
        if len(lines) < steps:
            log.seek(0)
            print(f"{row['name']}: {log.read()[-600:]}", flush=True)
            return row
    times = sorted(line["step_ms"] for line in lines[4:])
    return {**row, "step_s": times[len(times) // 4] * 1e-3, "peak_bytes": max(line.get("memory_bytes", 0) for line in lines),
            "loss": lines[-1]["loss"]}


def compare(rows):
    print("| run | measured ms | predicted ms | error | measured GiB | predicted GiB | error |\n|---|---|---|---|---|---|---|")
    times, memory = [], []
    for row in rows:
        if "step_s" not in row:
            continue
        times.append(row["predicted_s"] / row["step_s"] - 1)
        memory.append(row["predicted_bytes"] / row["peak_bytes"] - 1)
        print(f"| {row['name']} | {row['step_s'] * 1e3:.1f} | {row['predicted_s'] * 1e3:.1f} | {100 * times[-1]:+.1f} % | "
              f"{row['peak_bytes'] / 2**30:.2f} | {row['predicted_bytes'] / 2**30:.2f} | {100 * memory[-1]:+.1f} % |")
    if times:
        print(f"\n{len(times)} runs: mean error of the step time {100 * statistics.mean(map(abs, times)):.1f} %, worst "
              f"{100 * max(map(abs, times)):.1f} %; memory: mean {100 * statistics.mean(map(abs, memory)):.1f} %, worst "
              f"{100 * max(map(abs, memory)):.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["predict", "measure", "compare"])
    parser.add_argument("--espalier", default="build-cuda/bin/espalier")
    parser.add_argument("--cluster", default="one-h200")
    parser.add_argument("--set", choices=SETS, default="unseen")
    parser.add_argument("--rows", help="file written by the previous command")
    parser.add_argument("--out", default="rows.json")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--timeout", type=int, default=60)
    options = parser.parse_args()
    rows = json.load(open(options.rows)) if options.rows else SETS[options.set]
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "compare":
            return compare(rows)
        for i, row in enumerate(rows):
            if options.what == "predict":
                rows[i] = predict(options.espalier, options.cluster, row, folder)
            else:
                rows[i] = measure(options.espalier, row, folder, options.steps, options.timeout)
                if "step_s" in rows[i]:
                    print(f"{row['name']:36} {rows[i]['step_s'] * 1e3:8.1f} ms {rows[i]['peak_bytes'] / 2**30:7.2f} GiB", flush=True)
            with open(options.out, "w") as file:
                json.dump(rows, file, indent=1)


main()
