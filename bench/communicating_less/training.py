#!/usr/bin/env python3
"""training.py: measures how less communication changes the loss. Trains a small byte-level GPT on this repository's text with
8 ranks. All methods use the same samples, model, schedule and number of steps. Prints each validation loss, relative to
parallel SGD.

  bench/communicating_less/training.py                  the whole table, about half an hour on two cores
  … training.py --short                                 a sixth of the steps: a functional test that does not converge
  … training.py --out DIR --only "DiLoCo"               some of the methods; results accumulate in DIR

All methods begin with the same first steps of parallel SGD, as the papers do in different forms (post-local, DiLoCo from a
trained model, dense warm-up of Top-K, the first phase of 1-bit Adam). Methods that are defined for SGD use momentum SGD;
DiLoCo and 1-bit Adam use AdamW. Each method is compared with parallel SGD with the same optimizer. If the replicas differ,
their mean is evaluated.
"""
import argparse
import json
import pathlib
import sys
import tempfile
import time

from harness import bytes_sent, markdown, train, write_text

RANKS = 8
RUN = """
[run]
name = "communicating-less"
threads = 1
[model]
arch = "gpt"
layers = 2
heads = 4
dim = 64
seq_len = 64
[data]
train = "{text}"
val_fraction = 0.05
cache = "{cache}"
[train]
global_batch = 32
schedule = "cosine"
lr_floor = 0.0
weight_decay = 0.0
eval_batches = 80
[log]
every = 10
tensorboard = false
"""
STEPS, START = 7200, 1800

OPTIMIZERS = {
    "SGD": {"train.optimizer": "sgd", "train.momentum": 0.9, "train.lr": 0.5, "train.clip": 2, "train.warmup": 720},
    "AdamW": {"train.optimizer": "adamw", "train.beta2": 0.99, "train.lr": 1e-2, "train.clip": 1, "train.warmup": 300},
}
# A replica's local gradient is a mean over an eighth of the samples: more noise, a larger norm, a higher clipping bound.
OWN = {"train.clip": 5}


def compress(compressor, feedback="none", **more):
    return {"sync.compress": compressor, "sync.feedback": feedback, **more}


METHODS = {
    "PSGD": ("SGD", {}),
    "DSGD, one peer": ("SGD", {"sync.method": "gossip", "sync.topology": "one_peer", **OWN}),
    "Gossip-PGA, one peer, H = 8": ("SGD", {"sync.method": "gossip", "sync.topology": "one_peer", "sync.period": 8, **OWN}),
    "Local SGD, τ = 8": ("SGD", {"sync.method": "local", "sync.tau": 8, "sync.average_state": True, **OWN}),
    "MEM-SGD (EF), Top-K 1 %": ("SGD", compress("topk:0.01", "ef")),
    "MEM-SGD (EF), Top-K 5 %": ("SGD", compress("topk:0.05", "ef")),
    "DoubleSqueeze, Top-K 5 %": ("SGD", compress("topk:0.05", "doublesqueeze")),
    "EF21, Top-K 5 %": ("SGD", compress("topk:0.05", "ef21")),
    "NEOLITHIC R = 2, Top-K 5 %": ("SGD", compress("topk:0.05", "neolithic:2")),
    "PowerSGD, r = 4": ("SGD", compress("powersgd:4")),
    "int8": ("SGD", compress("int8", "ef")),
    "post-local SGD, τ = 8 after half": ("SGD", {"sync.method": "local", "sync.tau": 8, "sync.average_state": True,
                                                 "sync.local_after": "{half}", **OWN}),
    "DSGD, ring": ("SGD", {"sync.method": "gossip", "sync.topology": "ring", **OWN}),
    "PSGD (AdamW)": ("AdamW", {}),
    "DiLoCo, H = 20": ("AdamW", {"sync.method": "diloco", "sync.period": 20, "sync.outer_lr": 0.7,
                                 "sync.outer_momentum": 0.9}),
    "1-bit Adam": ("AdamW", compress("sign", "onebit_adam", **{"sync.onebit_warmup": "{start}"})),
}


class Table:
    def __init__(self, folder, steps, start):
        self.folder, self.steps, self.start = folder, steps, start
        self.results_path = folder / "results.json"
        self.results = json.loads(self.results_path.read_text()) if self.results_path.exists() else {}
        self.failed = []
        self.run_file = folder / "run.toml"
        if not (folder / "text.txt").exists():
            print(write_text(folder / "text.txt"), file=sys.stderr)
        self.run_file.write_text(RUN.format(text=folder / "text.txt", cache=folder / "cache"))

    def common(self, optimizer):
        short = {"train.warmup": max(1, OPTIMIZERS[optimizer]["train.warmup"] * self.steps // STEPS)}
        return {**OPTIMIZERS[optimizer], **short, "train.steps": self.steps}

    def begin(self, optimizer):
        """The first steps, shared by all methods with this optimizer; the whole run is parallel SGD."""
        name = "PSGD" if optimizer == "SGD" else f"PSGD ({optimizer})"
        path = self.folder / f"start-{optimizer}"
        if name not in self.results:
            self.take(name, path, {**self.common(optimizer), "checkpoint.every": self.start, "checkpoint.keep": 0}, 0)
        return path / f"checkpoints/step-{self.start}"

    def take(self, name, path, values, begun_at):
        clock = time.monotonic()
        lines = train(self.run_file, path, RANKS, values)
        self.results[name] = {"val_loss": lines[-1]["val_loss"], "train_loss": lines[-1]["loss"],
                              "bytes_per_step": bytes_sent(path) / (self.steps - begun_at),
                              "seconds": time.monotonic() - clock}
        self.results_path.write_text(json.dumps(self.results, indent=1))
        print(f"{name}: {lines[-1]['val_loss']:.4f}, {time.monotonic() - clock:.0f} s", file=sys.stderr, flush=True)

    def run(self, name):
        optimizer, values = METHODS[name]
        start = self.begin(optimizer)
        if name in self.results:
            return
        places = {"half": (self.steps + self.start) // 2, "start": self.start}
        values = {key: value.format(**places) if isinstance(value, str) else value for key, value in values.items()}
        path = self.folder / "".join(c if c.isalnum() else "-" for c in name)
        try:
            self.take(name, path, {**self.common(optimizer), **values, "checkpoint.resume": start}, self.start)
        except RuntimeError as error:  # a method that diverges gets a row, too
            print(error, file=sys.stderr, flush=True)
            self.failed.append(name)

    def markdown(self):
        rows = []
        for name, (optimizer, _) in METHODS.items():
            if name in self.failed:
                rows.append([name, optimizer, "stopped", "", "", ""])
            if name not in self.results:
                continue
            result = self.results[name]
            base = self.results["PSGD" if optimizer == "SGD" else f"PSGD ({optimizer})"]
            rows.append([name, optimizer, f"{result['val_loss']:.4f}",
                         f"{100 * (result['val_loss'] / base['val_loss'] - 1):+.1f} %",
                         f"{result['bytes_per_step'] / 1e3:.1f}",
                         f"{base['bytes_per_step'] / result['bytes_per_step']:.1f}×"])
        return markdown(["method", "optimizer", "validation loss", "vs PSGD", "kB sent per rank and step", "reduction"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a sixth of the steps")
    parser.add_argument("--out", type=pathlib.Path, help="folder for runs and results; default: a temporary folder")
    parser.add_argument("--only", nargs="+", help="only methods whose names contain one of these words")
    options = parser.parse_args()
    part = 6 if options.short else 1
    with tempfile.TemporaryDirectory(prefix="esp-training-") as temporary:
        folder = options.out or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        table = Table(folder.resolve(), STEPS // part, START // part)
        for name in METHODS:
            if not options.only or any(word in name for word in options.only):
                table.run(name)
        print(f"{RANKS} ranks, {table.steps} steps of which the first {table.start} are parallel SGD for all\n")
        print(table.markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
