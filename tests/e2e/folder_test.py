"""One run folder over several runs: finished ones asked to go on, begun anew, two at once, starts that fail, and runs
that diverge."""
import json
import os
import shutil
import signal
import subprocess
import unittest

from driving import ESPALIER, run, wait_until
from train_test import InFolder


class Again(InFolder):
    """The same run folder once more."""

    def test_a_run_that_is_done_is_left_as_it_is(self):
        self.train()
        before = self.files()
        for words in ([], ["--set", "train.steps=5"], ["--set", "train.steps=0", "--set", "train.warmup=0"], ["--nproc", "2"]):
            answer = self.train(*words)
            self.assertIn("nothing left to do", answer.stderr)
            self.assertIn("step-20 is at step 20", answer.stderr)
            for way_out in ("train.steps", "--resume none", "--run-dir"):
                self.assertIn(way_out, answer.stderr)
            self.assertEqual({k: v for k, v in self.files().items() if not k.startswith("flight/")}, before)
        self.assertIn("resumed from", self.train(steps=22).stderr)
        self.assertEqual([m["step"] for m in self.metrics()], list(range(1, 23)))

    def test_a_run_lost_after_its_last_checkpoint_is_summed_up(self):
        self.train()
        os.remove(self.path("run/summary.json"))
        self.assertIn("done after 20 steps", self.train().stderr)
        with open(self.path("run/summary.json")) as file:
            summary = json.load(file)
        self.assertEqual(summary["final_loss"], self.metrics()[-1]["loss"])

    def test_beginning_anew_sets_the_former_run_aside(self):
        self.train(steps=30)
        before = self.files()
        answer = self.train("--resume", "none", "--set", "model.dim=64", steps=10)
        self.assertIn("is now in " + self.path("run/before-1"), answer.stderr)
        self.assertEqual(self.files("run/before-1"), before)
        self.assertEqual(self.checkpoints(), ["step-10"])
        self.assertEqual([m["step"] for m in self.metrics()], list(range(1, 11)))
        self.train("--resume", "none", steps=12)
        self.assertEqual(self.checkpoints("run/before-2"), ["step-10"])
        self.assertIn("step-12 at step 12", self.train(steps=14).stderr)
        self.assertFalse(os.path.exists(self.path("run/before-3")))

    def test_nothing_is_set_aside_where_nothing_can_begin(self):
        self.train()
        before = self.files()
        self.train("--resume", "none", "--set", "data.train=" + self.path("nowhere.txt"), code=4)
        self.assertEqual(self.files(), before)

    def test_going_back_sets_later_checkpoints_aside(self):
        self.train("--set", "checkpoint.every=5", "--set", "checkpoint.keep=0")
        self.train("--resume", self.path("run/checkpoints/step-10"), steps=12)
        self.assertEqual(self.checkpoints(), ["step-10", "step-12", "step-5"])
        self.assertEqual(self.checkpoints("run/before-1"), ["step-15", "step-20"])
        self.assertEqual(len(self.metrics("run/before-1")), 20)
        self.assertEqual(len(self.metrics()), 12)

    def test_beginning_with_another_run_s_checkpoint_sets_this_one_s_aside(self):
        self.train("--run-dir", self.path("other"), steps=8)
        self.train(steps=30)
        self.train("--resume", self.path("other"), steps=12)
        self.assertEqual(self.checkpoints(), ["step-12"])
        self.assertEqual(self.checkpoints("run/before-1"), ["step-30"])
        self.assertEqual(self.checkpoints("other"), ["step-8"])

    def test_checkpoints_elsewhere_stay_on_their_disk(self):
        words = ["--set", "checkpoint.dir=" + self.path("elsewhere")]
        self.train(*words, steps=30)
        self.train(*words, "--resume", "none", steps=10)
        self.assertEqual(sorted(os.listdir(self.path("elsewhere"))), ["before-1", "step-10"])
        self.assertEqual(os.listdir(self.path("elsewhere/before-1")), ["step-30"])
        self.assertEqual(len(self.metrics("run/before-1")), 30)

    def test_one_run_at_a_time(self):
        first = subprocess.Popen([ESPALIER, "train", self.run_file(100000)], stderr=subprocess.DEVNULL)
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        self.assertTrue(wait_until(lambda: self.steps_made("run") >= 3))
        for words in ([], ["--nproc", "2"], ["--resume", "none"]):
            answer = run("train", self.path("run.toml"), *words)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(f"another run is under way in it (process {first.pid} ", answer.stderr)
            self.assertEqual(answer.stderr.count("\n"), 1, answer.stderr)
        self.assertIsNone(first.poll())
        first.send_signal(signal.SIGTERM)
        self.assertEqual(first.wait(60), 75)
        steps = [m["step"] for m in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertFalse(os.path.exists(self.path("run/run.lock")))

    def test_a_killed_run_holds_nothing(self):
        first = subprocess.Popen([ESPALIER, "train", self.run_file(100000)], stderr=subprocess.DEVNULL)
        self.assertTrue(wait_until(lambda: self.steps_made("run") >= 3))
        first.kill()
        first.wait()
        self.train(steps=5)

    def test_a_start_that_fails_leaves_no_folder(self):
        for words in ([], ["--nproc", "2"]):
            self.train(*words, "--set", "data.train=" + self.path("nowhere.txt"), code=4)
            self.train(*words, "--set", "model.arch=bert", "--set", "data.objective=pairs", code=2)
            self.assertFalse(os.path.exists(self.path("run")))
        os.mkdir(self.path("run"))
        self.train("--set", "data.train=" + self.path("nowhere.txt"), code=4)
        self.assertEqual(os.listdir(self.path("run")), [])  # the user's own
        answer = run("metrics", self.path("run"))
        self.assertEqual(answer.returncode, 4)
        self.assertIn("no run folder", answer.stderr)


class Diverged(InFolder):
    WORDS = ["--set", "train.lr=1e30", "--set", "train.warmup=0"]

    def test_what_is_no_number_is_no_checkpoint_to_resume(self):
        self.train("--set", "checkpoint.every=5", steps=10)
        for words in ([], ["--nproc", "2"], ["--set", "checkpoint.async=true"]):
            shutil.copytree(self.path("run"), self.path("copy"))
            answer = self.train("--run-dir", self.path("copy"), "--set", "checkpoint.every=3", *self.WORDS, *words, steps=16)
            self.assertIn("step 12: loss or values are not finite: no checkpoint is written", answer.stderr)
            self.assertIn("the last good checkpoint is " + self.path("copy/checkpoints/step-10"), answer.stderr)
            self.assertEqual(self.checkpoints("copy"), ["not_finite", "step-10", "step-5"])
            self.assertEqual(os.listdir(self.path("copy/checkpoints/not_finite")), ["step-16"])
            again = self.train("--run-dir", self.path("copy"), steps=16)
            self.assertIn("step-10 at step 10", again.stderr)
            self.assertNotIn("not finite", again.stderr)
            shutil.rmtree(self.path("copy"))

    def test_a_run_without_a_good_checkpoint_says_so(self):
        answer = self.train(*self.WORDS, steps=4)
        self.assertIn("not finite since step 2", answer.stderr)
        self.assertIn("there is no good checkpoint", answer.stderr)
        self.assertEqual(self.checkpoints(), ["not_finite"])


if __name__ == "__main__":
    unittest.main()
