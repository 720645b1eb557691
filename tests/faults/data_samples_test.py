"""Checks which samples are read when ranks are killed or stopped at any moment and restarted with another number of ranks.
Over the run each item must be read exactly once per epoch. Every rank logs the samples it reads (log.samples). Steps after
the checkpoint that the next start resumes from do not count. Prints the figure."""
import collections
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from cli_runner import ESPALIER, children

LONG = "ESPALIER_TEST_LONG" in os.environ
NUM_RESTARTS = 50 if LONG else 6
BATCH = 12
NUM_STEPS = 40 * (NUM_RESTARTS + 2)
EPOCHS = 2

RUN = """
[run]
dir = "{folder}/run"
threads = 1
[model]
arch = "bert"
layers = 1
heads = 1
dim = 16
ffn = 16
seq_len = 16
classes = 2
[data]
train = "{folder}/items.jsonl"
objective = "classification"
[train]
steps = {steps}
global_batch = 12
[checkpoint]
every = 7
keep = 2
[log]
tensorboard = false
every = 1000000
samples = true
"""


class Samples(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-samples-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.num_items = NUM_STEPS * BATCH // EPOCHS
        with open(self.path("items.jsonl"), "w") as file:
            for i in range(self.num_items):
                file.write(json.dumps({"text": f"item {i:07}", "label": i % 2}) + "\n")
        with open(self.path("run.toml"), "w") as file:
            file.write(RUN.format(folder=self.folder, steps=NUM_STEPS))

    def path(self, name):
        return os.path.join(self.folder, name)

    def taken(self):
        """[(step, samples, rows)] of all ranks since the last start. An incomplete line of a killed rank was not used in
        training."""
        lines = []
        for name in glob.glob(self.path("run/samples/*.jsonl")):
            with open(name) as file:
                for line in file.read().split("\n")[:-1]:
                    one = json.loads(line)
                    lines.append((one["step"], one["samples"], one["rows"]))
        return lines

    def last_step(self):
        return max((step for step, _, _ in self.taken()), default=0)

    def start(self, world):
        shutil.rmtree(self.path("run/samples"), ignore_errors=True)
        return subprocess.Popen([ESPALIER, "train", self.path("run.toml"), "--nproc", str(world)],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def ended(self, process):
        _, errors = process.communicate(timeout=90)
        resumed = re.search(r"resumed from .* at step (\d+)", errors)
        return int(resumed.group(1)) if resumed else 0, errors

    def test_samples_are_exact_when_ranks_are_killed_or_rescaled(self):
        chooser = random.Random(11)
        steps = {}  # step → its samples, from the last start that completed it
        done = num_restarts = 0
        worlds = collections.Counter()
        while num_restarts < NUM_RESTARTS:
            world = chooser.randint(1, 4)
            process = self.start(world)
            goal = done + chooser.randint(1, 30)
            end = time.monotonic() + 60
            while self.last_step() < goal and process.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
            if chooser.random() < 0.5:
                process.send_signal(signal.SIGTERM)
            else:
                ranks = children(process.pid) or [process.pid]
                os.kill(chooser.choice(ranks), signal.SIGKILL)
            begun_at, errors = self.ended(process)
            self.assertIn(process.returncode, (75, 3, -signal.SIGKILL, 0), errors)
            # A start discards the steps of earlier starts after its checkpoint.
            steps = {step: what for step, what in steps.items() if step <= begun_at}
            for step, samples, rows in self.taken():
                self.assertGreater(step, begun_at)
                steps.setdefault(step, []).append((samples, rows))
            done = self.newest()
            worlds[world] += 1
            num_restarts += 1
        process = self.start(chooser.randint(1, 4))
        begun_at, errors = self.ended(process)
        self.assertEqual(process.returncode, 0, errors)
        steps = {step: what for step, what in steps.items() if step <= begun_at}
        for step, samples, rows in self.taken():
            steps.setdefault(step, []).append((samples, rows))
        self.check(steps)
        print(f"{num_restarts} restarts on 1 to 4 ranks ({dict(sorted(worlds.items()))}), half by SIGKILL: "
              f"{self.num_items} items, each read exactly {EPOCHS} times in {NUM_STEPS} steps")

    def newest(self):
        return max((int(name.rsplit("-", 1)[1]) for name in glob.glob(self.path("run/checkpoints/step-*"))), default=0)

    def check(self, steps):
        self.assertEqual(sorted(steps), list(range(1, NUM_STEPS + 1)))
        by_epoch = [collections.Counter() for _ in range(EPOCHS)]
        for step, parts in steps.items():
            samples = sorted(sample for part, _ in parts for sample in part)
            self.assertEqual(samples, list(range((step - 1) * BATCH, step * BATCH)), f"step {step}")
            for part, rows in parts:
                for sample, row in zip(part, rows, strict=True):
                    by_epoch[sample // self.num_items][row] += 1
        # Items are identified by their token fingerprints. Each epoch must contain each fingerprint once.
        for rows in by_epoch:
            self.assertEqual(len(rows), self.num_items)
            self.assertEqual(set(rows.values()), {1})
        self.assertEqual(by_epoch[0], by_epoch[1])


if __name__ == "__main__":
    unittest.main()
