"""Drives a job for the recovery scripts: a small model on eight ranks under `espalier launch`. Kills ranks and reads each
recovery from the event log and the metrics. All times are from the host's monotonic clock."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

from cli_runner import ESPALIER, ranks_of, wait_until

# A test that times out must also end its jobs: SIGTERM raises SystemExit, so that `finally` blocks run.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

LAYOUTS = {
    "dp": [],
    "zero1": ["sync.method=zero1"],
    "zero2": ["sync.method=zero2"],
    "zero3": ["sync.method=zero3"],
    "zeropp": ["sync.method=zero3", "sync.quantise=qwz,qgz"],
    "offload": ["sync.method=zero3", "sync.offload=host"],
    "tp_pp": ["parallel.tp=2", "parallel.pp=2", "train.micro_batch=4"],
    "sp": ["parallel.tp=2", "parallel.sequence=true"],
    "cp": ["parallel.cp=2"],
    "ep": ["model.moe.experts=4", "parallel.ep=2"],
    "ps": ["sync.method=ps"],
    "gossip": ["sync.method=gossip"],
    "local": ["sync.method=local", "sync.tau=4"],
    "diloco": ["sync.method=diloco"],
    "topk": ["sync.compress=topk:0.1", "sync.feedback=ef"],
    "powersgd": ["sync.compress=powersgd"],
}

RUN = """
[run]
name = "faults"
seed = 3
threads = 1
deterministic = true
[model]
arch = "gpt"
layers = 2
heads = 2
dim = 32
seq_len = 32
[data]
train = "{folder}/text.txt"
[train]
steps = {steps}
global_batch = 16
lr = 1e-2
warmup = 2
eval_batches = 1
[log]
tensorboard = false
"""


def percentile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q / 100 * len(ordered)))] if ordered else float("nan")


class Job:
    """One run of `steps` steps under the launcher."""

    def __init__(self, folder, name, steps, settings, ranks=8, restarts=1000, flags=(), environment=None):
        """`restarts`: value of --max-restarts; None: the launcher's default."""
        self.dir = os.path.join(folder, name)
        self.ranks = ranks
        text = os.path.join(folder, "text.txt")
        if not os.path.exists(text):
            with open(text, "w") as file:
                file.write("the quick brown fox jumps over the lazy dog. " * 400)
        self.run_file = os.path.join(folder, name + ".toml")
        with open(self.run_file, "w") as file:
            file.write(RUN.format(folder=folder, steps=steps))
        limit = [] if restarts is None else ["--max-restarts", str(restarts)]
        words = ["launch", "--nproc-per-node", str(ranks), *limit, *flags, "--", "train", self.run_file, "--run-dir",
                 self.dir]
        for one in settings:
            words += ["--set", one]
        self.started = time.monotonic()
        self.process = subprocess.Popen([ESPALIER, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env=dict(os.environ, **(environment or {})))
        self.said = []
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def lines(self, name):
        """Complete lines of a log of the run; the last line may be incomplete."""
        try:
            with open(os.path.join(self.dir, name)) as file:
                text = file.read()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n") and line.startswith("{")]

    def tail(self, name):
        """The last complete line, read from the end of the file; None if there is none."""
        try:
            with open(os.path.join(self.dir, name), "rb") as file:
                file.seek(max(0, os.path.getsize(file.name) - 4096))
                lines = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b"{")]
                return json.loads(lines[-1]) if lines else None
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def curve(self):
        """Step, loss, gradient norm, learning rate and validation loss of every logged step, in the order of the file."""
        return [tuple(line.get(key) for key in ("step", "loss", "grad_norm", "lr", "val_loss"))
                for line in self.lines("metrics.jsonl") if "loss" in line]

    def recoveries(self):
        return [line for line in self.lines("events.jsonl") if line["event"] == "recovered"]

    def step(self):
        last = self.tail("metrics.jsonl")
        return last["step"] if last else 0

    def alive(self):
        return self.process.poll() is None

    def kill_one(self, spare_first=False):
        """Kills a random rank with SIGKILL and waits for the first step after the recovery. Returns the cost of the recovery as a
        dictionary, or None if the run ended first."""
        ranks = list(ranks_of(self.process.pid).values())
        if len(ranks) < self.ranks:
            return None
        victim = random.choice(ranks[1:] if spare_first else ranks)
        before = self.step()
        recovered_before = len(self.recoveries())
        made_at = {line["step"]: line["mono_s"] for line in self.lines("metrics.jsonl")}
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        event, found = None, {}

        def resumed():
            nonlocal event
            if event is None:
                events = self.recoveries()[recovered_before:]
                event = events[-1] if events else None
            if event:
                last = self.tail("metrics.jsonl")
                if last and last["mono_s"] > event["mono_s"]:
                    found["line"] = next(line for line in self.lines("metrics.jsonl")
                                         if line["mono_s"] > event["mono_s"])
                    return True
            return not self.alive()

        wait_until(resumed, limit=60)
        if "line" not in found:
            return None
        return {"seconds": found["line"]["mono_s"] - began, "rung": event["rung"], "in_place": event["in_place"],
                "lost": max(0, before - event["step"]), "noticed": event.get("seconds"), "step": event["step"],
                "lost_s": max(0, began - made_at.get(event["step"], self.started if event["step"] == 0 else began))}

    def kill_at(self, moment, limit=100):
        """Kills a random rank with SIGKILL at `moment` of the monotonic clock, in any state. If no rank runs then,
        waits for the next one. Returns the time of the kill; None if the job ended before."""
        time.sleep(max(0, moment - time.monotonic()))
        end = time.monotonic() + limit
        while self.alive() and time.monotonic() < end:
            for victim in random.sample(found := list(ranks_of(self.process.pid).values()), len(found)):
                try:
                    os.kill(victim, signal.SIGKILL)
                    return time.monotonic()
                except ProcessLookupError:  # it has just ended
                    pass
        return None

    def seconds_to_next_step(self, kills):
        """For each recovery in place: the seconds from its last kill to the next completed step, unless a later recovery has
        removed that step's line."""
        seconds, begun, events = [], self.started, self.recoveries()
        times = [line["mono_s"] for line in self.lines("metrics.jsonl")]
        for event, end in zip(events, [event["mono_s"] for event in events[1:]] + [float("inf")]):
            kill = max((kill for kill in kills if begun < kill < event["mono_s"]), default=None)
            step = min((time for time in times if event["mono_s"] < time < end), default=None)
            if event["in_place"] and kill and step:
                seconds.append(step - kill)
            begun = event["mono_s"]
        return seconds

    def finish(self, limit=200):
        self.process.wait(timeout=limit)
        self.ended = time.monotonic()
        self.reader.join(timeout=5)
        return self.process.returncode

    def end(self):
        if self.alive():
            self.process.kill()
        self.process.wait()

    def restarts(self):
        with open(os.path.join(self.dir, "summary.json")) as file:
            return json.load(file)["restarts"]

    def recovery_seconds(self):
        """Seconds from the failure to the restored state of each recovery in place, from the launcher's log lines."""
        return [float(time) * (1e-3 if unit == "ms" else 1) for time, unit in
                re.findall(r"recovered in ([0-9.]+) (m?s): ", "".join(self.said))]

    def state(self, step):
        """Sizes and checksums of all parameters and optimizer state."""
        with open(os.path.join(self.dir, f"checkpoints/step-{step}/manifest.json")) as file:
            manifest = json.load(file)
        return manifest["files"]
