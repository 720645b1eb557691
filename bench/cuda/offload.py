#!/usr/bin/env python3
"""Times training whose states exceed GPU memory: 13 billion parameters with a budget of 40 GB, and 2.65 billion.

  bench/cuda/offload.py --bin FOLDER --out FOLDER [--only large,whole,small,rows,disk] [--seconds N] [--reserve GIB]

large  shape of GPT-3 13B (40 × 5120): weights on the GPU, moments and half of the master weights on the host, and in a file what
       exceeds host memory; a few steps over the same sequences.
whole  the same width and batch, entirely on the GPU, with 8 and 16 layers; extrapolated to 40 layers as t16 + 3 (t16 − t8).
small  32 × 2560: entirely on the GPU, with states on the host, and with early updates.
rows   shape of a LLaMA (16 × 2048) with a vocabulary of 200,064 and an untied embedding table; weights on the host, 1 and 4
       sequences: the table is copied to the GPU, or its rows are read in place.
disk   `espalier bench offload` on the disk in use.

A run that exhausts host memory is killed before the machine runs out of memory. Results go to OUT/offload.json.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

root = pathlib.Path(__file__).resolve().parent.parent.parent
GIB = 2**30


def memory(name):
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))


def resident(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:")), 0)
    except OSError:
        return 0


def parameters(layers, dim, length, vocab):
    return layers * (12 * dim * dim + 13 * dim) + (vocab + length + 2) * dim


class Bench:
    def __init__(self, options):
        self.options = options
        self.bin = pathlib.Path(options.bin).resolve() / "espalier"
        self.out = pathlib.Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.work = pathlib.Path(options.work or "offload-runs").resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.until = time.time() + options.seconds
        self.environment = dict(os.environ, LD_LIBRARY_PATH=options.libraries + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
        self.figures = {}
        # The reported memory of a virtual machine may grow with use.
        self.host = max(memory("MemTotal"), int(options.host_gib * GIB))
        self.disk = shutil.disk_usage(self.work).free
        print(f"host: {memory('MemTotal') / GIB:.1f} GiB now, {memory('MemAvailable') / GIB:.1f} available, {self.host / GIB:.1f} "
              f"assumed; disk: {self.disk / GIB:.1f} GiB free; {os.cpu_count()} cores", flush=True)

    def train(self, name, settings, timeout):
        folder = self.work / name
        arguments = [str(self.bin), "train", "configs/gpt2_124m.toml", "--run-dir", str(folder), "--resume", "none"]
        base = {"model.arch": "gpt", "model.preset": "", "model.vocab": 50304, "model.seq_len": 1024, "model.dropout": 0,
                "data.train": str(self.text(settings)), "data.val_fraction": 0, "data.tokenizer": "byte",
                "data.order": "sequential", "train.schedule": "constant", "train.warmup": 0, "train.clip": 0,
                "train.precision": "bf16", "train.micro_batch": 0, "train.recompute": "full", "run.device": "cuda", "log.every": 1,
                "log.tensorboard": "false", "train.eval_every": 0, "checkpoint.at_end": "false", "checkpoint.every": 0}
        for key, value in {**base, **settings}.items():
            arguments += ["--set", f"{key}={value}"]
        begun, most, low = time.time(), 0, 0
        why = ""
        with open(self.out / f"{name}.log", "w+") as log:
            process = subprocess.Popen(arguments, cwd=root, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
            deadline = min(begun + timeout, self.until)
            while process.poll() is None:
                time.sleep(0.25)
                most = max(most, resident(process.pid))
                low = low + 1 if memory("MemAvailable") < 1.5 * GIB and most > self.host * 0.8 else 0
                if time.time() > deadline:
                    why = f"not done in {time.time() - begun:.0f} s"
                elif most > self.host - 2 * GIB or low >= 4:
                    why = f"host memory is exhausted: {most / GIB:.1f} GiB resident"
                if why:
                    process.kill()
            process.wait()
            log.seek(0)
            text = log.read()
        print(f"--- {name}: {process.returncode} {why} after {time.time() - begun:.1f} s, {most / GIB:.1f} GiB of host memory\n"
              + "\n".join(text.splitlines()[-9:]), flush=True)
        rows = []
        if (folder / "metrics.jsonl").exists():
            rows = [json.loads(line) for line in open(folder / "metrics.jsonl") if line.endswith("\n")]
        figure = {"settings": {k: v for k, v in settings.items()}, "ended": why or process.returncode, "host_gib": most / GIB,
                  "wall_s": time.time() - begun, "step_s": [row["step_ms"] / 1e3 for row in rows],
                  "loss": [row["loss"] for row in rows], "gib": max([row["memory_bytes"] for row in rows], default=0) / GIB}
        if (folder / "summary.json").exists():
            figure["offloaded"] = json.load(open(folder / "summary.json")).get("offloaded")
        if (folder / "ranks" / "rank-0.json").exists():
            rank = json.load(open(folder / "ranks" / "rank-0.json"))
            figure["reserved_gib"] = rank["reserved_bytes"] / GIB
            figure["host_link"] = rank.get("host_link")
        self.figures[name] = figure
        (self.out / "offload.json").write_text(json.dumps(self.figures, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        return figure if rows and not why and process.returncode == 0 else None

    def text(self, settings):
        """Writes the text of one step, so that all steps read the same sequences."""
        words = b"".join(path.read_bytes() for path in sorted((root / "docs").glob("*.md")))
        path = self.work / "text.txt"
        path.write_bytes(words[:settings["train.global_batch"] * settings.get("model.seq_len", 1024) + 1])
        return path

    @staticmethod
    def typical(figure):
        steps = sorted(figure["step_s"][1:] or figure["step_s"])
        return steps[len(steps) // 2]

    def large(self):
        for layers, batch in ((40, self.options.batch), (40, 8), (24, 8)):
            states = 10 * parameters(layers, 5120, 1024, 50304)
            room = self.host - self.options.reserve * GIB
            kept = min(states - GIB, room)
            if states - kept > self.disk - 2 * GIB:
                print(f"{layers} layers do not fit: {states / GIB:.1f} GiB of states; {room / GIB:.1f} GiB of memory, "
                      f"{self.disk / GIB:.1f} GiB of disk")
                continue
            done = self.train(f"large-{layers}-{batch}", {
                "model.layers": layers, "model.heads": 40, "model.dim": 5120, "train.global_batch": batch, "train.lr": 2e-7,
                "train.steps": self.options.steps, "run.device_memory_mb": 38000, "sync.method": "zero3", "sync.offload": "file",
                "sync.offload_host_mb": int(kept / 2**20), "sync.update_early": "true", "sync.split_master": "true",
                "sync.offload_dir": str(self.work / "tier")}, 300)
            if done:
                return

    def whole(self):
        seconds = {}
        for layers in (8, 16):
            done = self.train(f"whole-{layers}", {"model.layers": layers, "model.heads": 40, "model.dim": 5120,
                                                  "train.global_batch": self.options.batch, "train.lr": 1e-6, "train.steps": 6}, 60)
            if not done:
                return
            seconds[layers] = self.typical(done)
        forty = seconds[16] + 3 * (seconds[16] - seconds[8])
        print(f"entirely on the GPU: 8 layers {seconds[8]:.3f} s, 16 layers {seconds[16]:.3f} s, extrapolated to 40 layers {forty:.3f} s")
        self.figures["whole-40"] = forty

    def small(self):
        shape = {"model.layers": 32, "model.heads": 32, "model.dim": 2560, "train.global_batch": 64, "train.lr": 1e-6}
        budget = {"run.device_memory_mb": 38000, "sync.offload": "host"}
        runs = {"whole": {}, "host": {**budget, "sync.method": "zero2"},
                "early": {**budget, "sync.method": "zero3", "sync.update_early": "true"},
                "early-split": {**budget, "sync.method": "zero3", "sync.update_early": "true", "sync.split_master": "true"}}
        whole = None
        for name, settings in runs.items():
            done = self.train("small-" + name, {**shape, **settings, "train.steps": 4}, 60)
            if not done:
                continue
            seconds = self.typical(done)
            whole = whole or seconds
            print(f"2.65 billion, {name}: {seconds:.3f} s, {whole / seconds * 100:.0f} %, {done['gib']:.1f} GiB")

    def rows(self):
        shape = {"model.layers": 16, "model.heads": 32, "model.dim": 2048, "model.vocab": 200064, "model.tie_embeddings": "false",
                 "train.lr": 1e-6, "train.steps": 8, "sync.method": "zero3", "sync.offload": "host", "sync.offload_params": "host"}
        for batch in (1, 4):
            seconds = {}
            for direct in ("false", "true", "false", "true"):
                done = self.train(f"rows-{batch}-{direct}", {**shape, "train.global_batch": batch, "sync.direct_access": direct}, 60)
                if not done:
                    return
                up = done["host_link"]["bytes_up"] / 8 / 1e9
                seconds.setdefault(direct, []).append((self.typical(done), up, done["gib"]))
            for direct, runs in seconds.items():
                print(f"a table of 200,064 × 2048, {batch} × 1024 tokens, direct_access = {direct}: "
                      + "; ".join(f"{s:.3f} s, {up:.2f} GB per step from host to device, {gib:.2f} GiB" for s, up, gib in runs))

    def disk_rate(self):
        done = subprocess.run([str(self.bin), "bench", "offload", "--folder", str(self.work), "--rounds", "2"],
                              env=self.environment, timeout=60, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        print(done.stdout, flush=True)

    def run(self):
        parts = {"large": self.large, "whole": self.whole, "small": self.small, "rows": self.rows, "disk": self.disk_rate}
        for part in self.options.only.split(","):
            begun = time.time()
            try:
                parts[part]()
            except Exception as error:  # an error in one part must not prevent the others
                print(f"{part}: {error!r}")
            print(f"({part}: {time.time() - begun:.1f} s)", flush=True)
        (self.out / "offload.json").write_text(json.dumps(self.figures, indent=1))
        shutil.rmtree(self.work, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", default="", help="folder for run folders and the file tier")
    parser.add_argument("--libraries", default="", help="folders of shared libraries, joined by colons")
    parser.add_argument("--only", default="large,whole,small,rows,disk")
    parser.add_argument("--seconds", type=float, default=540, help="time limit of the whole script")
    parser.add_argument("--host-gib", type=float, default=0, help="host memory in GiB, for a virtual machine whose memory grows with use")
    parser.add_argument("--reserve", type=float, default=12, help="GiB of host memory reserved for other uses")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    Bench(parser.parse_args()).run()


main()
