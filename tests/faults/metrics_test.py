"""metrics.jsonl when the rank that writes it is killed, and run files that cannot be written: a full disk and `ulimit -f`
may cost lines, never the training. Prints its figures.

    ESPALIER=build/bin/espalier PYTHONPATH=tests/app:tests/e2e python3 tests/faults/metrics_test.py -v KilledRanks
"""
import ctypes
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from cli_runner import ESPALIER, ranks_of, wait_until
from recover_driving import Job

LONG = "ESPALIER_TEST_LONG" in os.environ
FIGURES = ("step", "loss", "grad_norm", "lr", "tokens", "val_loss")


class KilledRanks(unittest.TestCase):
    """Ranks are killed with SIGKILL at random moments. Every logged step must have one line, with the figures of a run without faults."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-metrics-")
        self.addCleanup(shutil.rmtree, self.folder)

    def job(self, name, steps, *settings):
        job = Job(self.folder, name, steps, ["train.eval_every=3", "data.val_fraction=0.2", *settings], ranks=2)
        self.addCleanup(job.end)
        return job

    def lines(self, job):
        return [{key: line.get(key) for key in FIGURES} for line in job.lines("metrics.jsonl")]

    def kill_often(self, name, steps, kills, victim, *settings):
        """Kills `victim` repeatedly, each time after some steps. Returns the job and the number of kills."""
        job, made, target = self.job(name, steps, *settings), 0, 0
        for _ in range(kills):
            target += random.randint(5, max(6, steps // kills - 1))
            wait_until(lambda: job.step() >= target or not job.alive(), limit=100)
            time.sleep(random.uniform(0, 0.004))
            ranks = ranks_of(job.process.pid) if job.alive() else {}
            if victim not in ranks:
                continue
            before = len(job.recoveries())
            os.kill(ranks[victim], signal.SIGKILL)
            made += 1
            wait_until(lambda: len(job.recoveries()) > before or not job.alive(), limit=60)
        self.assertEqual(job.finish(), 0, "".join(job.said))
        return job, made

    def check(self, victim, *settings, seed):
        random.seed(seed)
        kills, steps = (60, 1800) if LONG else (10, 300)
        peace = self.job("peace", steps, *settings)
        self.assertEqual(peace.finish(), 0, "".join(peace.said))
        killed, made = self.kill_often("killed", steps, kills, victim, *settings)
        self.assertGreaterEqual(made, kills // 2)
        lines = killed.lines("metrics.jsonl")
        self.assertEqual(self.lines(killed), self.lines(peace))
        self.assertFalse([one for one in killed.lines("events.jsonl") if one["event"] == "metrics_gap"])
        with open(os.path.join(killed.dir, "summary.json")) as one, open(os.path.join(peace.dir, "summary.json")) as other:
            ended, wanted = json.load(one), json.load(other)
        self.assertEqual([ended[key] for key in ("final_loss", "val_loss")], [wanted[key] for key in ("final_loss", "val_loss")])
        print(f"{made} kills of rank {victim}: {len(lines)} lines, each step once, "
              f"{sum('recovered' in line for line in lines)} of them after a recovery")

    def test_no_line_is_lost_when_rank_0_is_killed(self):
        self.check(0, seed=1)

    def test_no_line_is_lost_when_another_rank_is_killed(self):
        self.check(1, seed=2)

    def test_no_line_is_lost_when_steps_are_repeated(self):
        self.check(0, "sync.method=zero3", "checkpoint.snapshot_every=2", seed=3)

    def test_lost_lines_are_recorded_as_event(self):
        """Simulates a power loss: the checkpoint is on the disk, but the end of the log is not."""
        job = self.job("cut", 6, "checkpoint.every=6", "train.eval_every=0")
        self.assertEqual(job.finish(), 0, "".join(job.said))
        path = os.path.join(job.dir, "metrics.jsonl")
        with open(path) as file:
            lines = file.readlines()
        with open(path, "w") as file:
            file.writelines([*lines[:3], lines[3][:20]])
        again = self.job("cut", 9, "checkpoint.resume=auto", "train.eval_every=0")
        self.assertEqual(again.finish(), 0, "".join(again.said))
        self.assertEqual([line["step"] for line in again.lines("metrics.jsonl")], [1, 2, 3, 7, 8, 9])
        gap = [one for one in again.lines("events.jsonl") if one["event"] == "metrics_gap"]
        self.assertEqual([(one["first_step"], one["step"]) for one in gap], [(4, 6)])
        self.assertIn("the lines of steps 4 to 6 are missing", "".join(again.said))


class FullDisk(unittest.TestCase):
    """A run folder on a full disk, and a log file that exceeds `ulimit -f`."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-full-")
        self.addCleanup(shutil.rmtree, self.folder)
        with open(self.path("text.txt"), "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 400)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def mount(self, name, size):
        """Mounts a small tmpfs."""
        os.mkdir(self.path(name))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"tmpfs", self.path(name).encode(), b"tmpfs", 0, f"size={size}".encode()) != 0:
            self.skipTest(f"cannot mount a file system: {os.strerror(ctypes.get_errno())}")
        self.addCleanup(libc.umount2, self.path(name).encode(), 2)
        return self.path(name)

    def train(self, run_dir, *settings, ranks=1, limits=None):
        words = ["train", "--nproc", str(ranks), "--run-dir", run_dir, self.path("run.toml")]
        with open(self.path("run.toml"), "w") as file:
            file.write(f"""
[run]
threads = 1
deterministic = true
[model]
layers = 1
heads = 1
dim = 16
seq_len = 16
[data]
train = "{self.path('text.txt')}"
[train]
steps = 40
global_batch = 4
eval_batches = 1
[checkpoint]
at_end = false
""")
        for one in settings:
            words += ["--set", one]
        with open(self.path("out"), "w") as out, open(self.path("errors"), "w") as errors:
            process = subprocess.Popen([ESPALIER, *words], stdout=out, stderr=errors, preexec_fn=limits)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def errors(self):
        with open(self.path("errors")) as file:
            return file.read()

    def fill(self, disk):
        """Fills the free space."""
        with open(os.path.join(disk, "filler"), "wb", buffering=0) as file:
            for chunk in (1 << 20, 4096):
                try:
                    while file.write(bytes(chunk)):
                        pass
                except OSError as error:
                    self.assertEqual(error.errno, errno.ENOSPC)

    def ended(self, process, code=0):
        process.wait(timeout=100)
        self.assertEqual(process.returncode, code, self.errors())
        return self.errors()

    def steps(self, run_dir):
        with open(os.path.join(run_dir, "metrics.jsonl")) as file:
            return [json.loads(line)["step"] for line in file if line.endswith("\n")]

    def printed(self):
        """The last step on stdout."""
        with open(self.path("out")) as file:
            return max((int(line.split()[1].split("/")[0]) for line in file if line.startswith("step ") and "/" in line), default=0)

    def test_training_continues_when_disk_is_full(self):
        disk = self.mount("disk", "8m")
        run_dir = os.path.join(disk, "run")
        process = self.train(run_dir, "train.steps=1000000", "log.trace=true")
        self.assertTrue(wait_until(lambda: os.path.exists(os.path.join(run_dir, "metrics.jsonl"))))
        self.fill(disk)
        self.assertTrue(wait_until(lambda: "/metrics.jsonl" in self.errors()))
        had = self.printed()
        self.assertTrue(wait_until(lambda: self.printed() > had + 100), "training makes no more steps")
        process.send_signal(signal.SIGTERM)
        errors = self.ended(process, 75)
        warnings = [line for line in errors.splitlines() if "metrics.jsonl" in line]
        self.assertEqual(len(warnings), 1, errors)
        self.assertIn(os.path.join(run_dir, "metrics.jsonl") + ": No space left on device", warnings[0])
        self.assertIn("training continues", warnings[0])
        for name in ("summary.json", "TensorBoard", "trace"):
            warnings = [line for line in errors.splitlines() if f" {name}: " in line]
            self.assertEqual(len(warnings), 1, (name, errors))
            self.assertIn("No space left on device", warnings[0])
        steps = self.steps(run_dir)
        self.assertEqual(steps, sorted(set(steps)))
        self.assertLess(steps[-1], self.printed())

    def test_lines_are_written_when_space_is_available_again(self):
        disk = self.mount("disk", "8m")
        run_dir = os.path.join(disk, "run")
        process = self.train(run_dir, "train.steps=1000000", "log.tensorboard=false")
        self.assertTrue(wait_until(lambda: os.path.exists(os.path.join(run_dir, "metrics.jsonl"))))
        self.fill(disk)
        self.assertTrue(wait_until(lambda: "No space left on device" in self.errors()))
        os.remove(os.path.join(disk, "filler"))
        had = len(self.steps(run_dir))
        self.assertTrue(wait_until(lambda: len(self.steps(run_dir)) > had + 50))
        process.send_signal(signal.SIGTERM)
        self.ended(process, 75)
        steps = self.steps(run_dir)
        missing = sorted(set(range(1, steps[-1] + 1)) - set(steps))
        self.assertEqual(steps, sorted(set(steps)))
        with open(os.path.join(run_dir, "events.jsonl")) if missing else open(os.devnull) as file:
            gaps = [one for one in map(json.loads, file) if one["event"] == "metrics_gap"]
        recorded = {step for one in gaps for step in range(one["first_step"], one["step"] + 1)}
        self.assertEqual(set(missing) - recorded, set())

    def test_training_continues_beyond_ulimit_f(self):
        """By default the operating system would kill the process with SIGXFSZ."""
        run_dir = self.path("limited")
        limit = 4 << 20  # larger than the flight recorder file
        process = self.train(run_dir, "train.steps=12000", "log.tensorboard=false", "train.eval_every=0",
                             limits=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        errors = self.ended(process)
        self.assertIn(f"{run_dir}/metrics.jsonl: File too large", errors)
        self.assertLessEqual(os.path.getsize(os.path.join(run_dir, "metrics.jsonl")), limit)
        self.assertGreater(len(self.steps(run_dir)), 5000)

    def test_error_names_disk_that_is_full_from_the_start(self):
        disk = self.mount("disk", "1m")
        self.fill(disk)
        errors = self.ended(self.train(os.path.join(disk, "run")), 4)
        self.assertIn("No space left on device", errors)
        self.assertIn(disk, errors)

    def test_error_names_final_checkpoint_on_full_disk(self):
        disk = self.mount("disk", "8m")
        run_dir = os.path.join(disk, "run")
        process = self.train(run_dir, "train.steps=1000000", "checkpoint.at_end=true", "log.tensorboard=false")
        self.assertTrue(wait_until(lambda: os.path.exists(os.path.join(run_dir, "metrics.jsonl"))))
        self.fill(disk)
        process.send_signal(signal.SIGTERM)
        errors = self.ended(process, 4)
        self.assertIn("No space left on device", errors.splitlines()[-1])
        self.assertIn(os.path.join(run_dir, "checkpoints"), errors.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
