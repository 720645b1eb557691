"""One run folder over several runs: finished ones asked to go on, begun anew, two at once, starts that fail, and runs
that diverge."""
import json
import os
import shutil
import signal
import subprocess
import unittest

from driving import ESPALIER, free_port, ranks_of, run, wait_until
from train_test import InFolder


class Again(InFolder):
    """The same run folder once more."""

    def test_a_run_that_is_done_is_left_as_it_is(self):
        self.train()
        before = self.files()
        for words in ([], ["--set", "train.steps=5"], ["--set", "train.steps=0"], ["--nproc", "2"]):
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
        self.assertIn("done after 20 steps", self.train().stdout)
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

    def test_damaged_lines_and_checkpoints_that_cannot_be_used_are_named(self):
        self.train()
        with open(self.path("run/metrics.jsonl"), "a") as metrics:
            metrics.write('{"step":"x","loss":1}\n{"step":1e20,"loss":1}\n' + '[' * 100000 + '\n')
        with open(self.path("run/events.jsonl"), "a") as events:
            events.write('{"event":7}\n')
        os.symlink("step-20", self.path("run/checkpoints/step-30"))
        os.mkdir(self.path("run/checkpoints/step-100000000000000000000"))
        answer = run("generate", "--checkpoint", self.path("run"), "--prompt", "a", "--tokens", "1")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        for text in ("step-30 (got a symbolic link", "step-100000000000000000000 (got a step beyond"):
            self.assertIn(text, answer.stderr)
        answer = self.train(steps=22)
        for text in ("step-30 (got a symbolic link", "step-100000000000000000000 (got a step beyond"):
            self.assertIn(text, answer.stderr)
        self.assertEqual([m["step"] for m in self.metrics()], list(range(1, 23)))
        shutil.rmtree(self.path("run/checkpoints/step-20"))
        shutil.rmtree(self.path("run/checkpoints/step-22"))
        answer = run("generate", "--checkpoint", self.path("run"), "--prompt", "a")
        self.assertEqual(answer.returncode, 4, answer.stderr)
        self.assertIn("Passed over: ", answer.stderr)
        self.assertIn("step-30 (got a symbolic link", answer.stderr)

    def test_one_run_at_a_time(self):
        first = subprocess.Popen([ESPALIER, "train", self.run_file(100000)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
        first = subprocess.Popen([ESPALIER, "train", self.run_file(100000)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
        self.assertIn("without a run", answer.stderr)


    def test_the_folder_s_run_file_goes_on_however_the_run_began(self):
        self.train("--run-dir", self.path("other"), steps=2)
        for words in (["--resume", "none"], ["--resume", self.path("other")]):
            self.train(*words, steps=4)
            answer = run("train", self.path("run/run.toml"), "--set", "train.steps=6")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertIn("step-4 at step 4", answer.stderr)
            self.assertEqual(self.metrics()[-1]["step"], 6)


    def test_a_folder_of_checkpoints_that_cannot_be_is_refused_before_the_first_step(self):
        for folder in (self.path("text.txt"), self.path("text.txt/below"), "/proc/espalier/deep"):
            for words in ([], ["--nproc", "2"]):
                answer = self.train("--set", "checkpoint.dir=" + folder, *words, code=4)
                self.assertIn("checkpoint folder " + folder, answer.stderr)
                self.assertIn("checkpoint.dir names another", answer.stderr)
                self.assertNotIn("step ", answer.stdout)
                self.assertFalse(os.path.exists(self.path("run")))
        self.train("--set", "checkpoint.dir=" + self.path("new/er"), "--set", "data.train=" + self.path("nowhere"), code=4)
        self.assertFalse(os.path.exists(self.path("new")))

    def test_a_folder_that_holds_something_else_is_no_run_folder(self):
        self.train("--run-dir", self.path("runs/a"), steps=2)
        answer = run("convert", self.path("runs/a"), self.path("hf"))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        for name, what in (("hf", "a Hugging Face folder"), ("runs", "a folder that holds run folders"),
                           ("runs/a/checkpoints", "a folder of checkpoints"), ("runs/a/checkpoints/step-2", "a checkpoint")):
            before = os.listdir(self.path(name))
            for words in ([], ["--nproc", "2"]):
                answer = self.train("--run-dir", self.path(name), *words, code=2)
                self.assertEqual(answer.stderr.count(f"run folder {self.path(name)}: got {what}; expected"), 1, answer.stderr)
            self.assertEqual(os.listdir(self.path(name)), before)


class StartedAgain(InFolder):
    """By a launcher, whose folder in memory tells whether the job had begun in the run folder."""

    def again(self):
        environment = {"TORCHELASTIC_RESTART_COUNT": "1", "ESPALIER_SNAPSHOTS": self.path("memory")}
        return run("train", self.run_file(30), "--resume", "none", env=environment).stderr

    def test_a_job_lost_before_it_began_does_not_take_the_former_run_for_its_own(self):
        self.train(steps=20)
        os.mkdir(self.path("memory"))
        said = self.again()
        self.assertIn("is now in " + self.path("run/before-1"), said)
        self.assertNotIn("resumed from", said)
        self.assertEqual(self.checkpoints("run/before-1"), ["step-20"])

    def test_a_job_lost_after_it_began_resumes_its_own_checkpoint(self):
        self.train(steps=20)
        os.mkdir(self.path("memory"))
        with open(self.path("memory/begun"), "w"):
            pass
        self.assertIn("step-20 at step 20", self.again())


class Remembered(InFolder):
    """A folder knows the run file of the run in it."""
    REMEDIES = ("--run-dir", "--resume none", "--continue-with-changes")

    def kept(self):
        return {name: held for name, held in self.files().items() if not name.startswith("flight/")}

    def refused(self, *words, changes, **more):
        before = self.kept()
        answer = self.train(*words, code=2, **more)
        for one in (*changes, *self.REMEDIES):
            self.assertIn(one, answer.stderr)
        self.assertEqual(answer.stderr.count("espalier:"), 1, answer.stderr)
        self.assertTrue(self.kept() == before)
        return answer

    def train_here(self, *words):
        return subprocess.run([os.path.realpath(ESPALIER), "train", *words], cwd=self.folder, capture_output=True, text=True,
                              timeout=100)

    def events(self, kind):
        with open(self.path("run/events.jsonl")) as file:
            return [one for one in map(json.loads, file) if one["event"] == kind]

    def test_keys_that_change_the_result_are_refused(self):
        self.train(steps=4)
        for words in ([], ["--nproc", "2"]):
            for steps in (4, 8):
                self.refused("--set", "model.layers=4", "--set", "train.lr=0.02", *words, steps=steps,
                             changes=["model.layers: 2 → 4", "train.lr: 0.01 → 0.02"])
        self.refused("--set", "sync.method=zero1", "--nproc", "2", changes=["sync.method: allreduce → zero1"])
        self.refused("--set", "run.seed=4", "--resume", self.path("run/checkpoints/step-4"), changes=["run.seed: 3 → 4"])
        self.refused(dropout=0.1, changes=["model.dropout: 0.0 → 0.1"])

    def test_other_keys_are_listed(self):
        self.train(steps=4)
        answer = self.train("--set", "log.every=2", "--set", "train.micro_batch=4", "--set", "model.kv_heads=2", steps=8)
        self.assertIn("train.steps: 4 → 8", answer.stderr)
        self.assertIn("log.every: 1 → 2", answer.stderr)
        self.assertIn("train.schedule = cosine now ends at step 8, not 4", answer.stderr)
        self.assertNotIn("kv_heads", answer.stderr)
        self.assertNotIn("data.cache", answer.stderr)  # the user has not named one
        self.assertEqual(self.metrics()[-1]["step"], 8)

    def test_changes_that_are_accepted_are_recorded(self):
        self.train(steps=4)
        for words in ([], ["--nproc", "2"]):
            first = not words
            rate = 0.02 if first else 0.03
            steps = 6 if first else 8
            answer = self.train("--continue-with-changes", "--set", f"train.lr={rate}", *words, steps=steps)
            before = 0.01 if first else 0.02
            self.assertIn(f"train.lr: {before} → {rate}", answer.stderr)
            event = self.events("run_file_changed")[-1]
            self.assertEqual((event["step"], event["changes"]),
                             (steps - 2, [{"key": "train.lr", "before": str(before), "now": str(rate)}]))
            with open(self.path("run/run.toml")) as file:
                self.assertIn(f"lr = {rate}\n", file.read())
        self.refused(steps=10, changes=["train.lr: 0.03 → 0.01"])
        self.assertEqual(len(self.events("run_file_changed")), 2)

    def test_a_folder_is_not_another_run_file_s(self):
        for name, rate in (("one", 0.01), ("other", 0.02)):
            os.mkdir(self.path(name))
            with open(self.run_file(4)) as file:
                text = file.read().replace('name = "tiny"\n', "").replace(f'dir = "{self.folder}/run"\n', "")
            with open(self.path(name + "/my.toml"), "w") as file:
                file.write(text.replace("1e-2", str(rate)))
        answer = self.train_here("one/my.toml")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertTrue(os.path.exists(self.path("runs/my/summary.json")))
        answer = self.train_here("other/my.toml")
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("(run file one/my.toml, this one is other/my.toml)", answer.stderr)
        os.rename(self.path("one/my.toml"), self.path("moved.toml"))
        answer = self.train_here("moved.toml", "--run-dir", "runs/my", "--set", "train.steps=6")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("resumed from", answer.stderr)

    def test_checkpoints_that_were_copied_know_theirs(self):
        self.train(steps=4)
        os.mkdir(self.path("copy"))
        shutil.copytree(self.path("run/checkpoints"), self.path("copy/checkpoints"))
        answer = self.train("--run-dir", self.path("copy"), "--set", "train.lr=0.02", steps=8, code=2)
        self.assertIn("train.lr: 0.01 → 0.02", answer.stderr)
        self.train("--run-dir", self.path("copy"), steps=8)
        answer = self.train("--run-dir", self.path("fresh"), "--set", "checkpoint.dir=" + self.path("run/checkpoints"),
                            "--set", "train.lr=0.02", steps=8, code=2)
        self.assertIn("train.lr: 0.01 → 0.02", answer.stderr)

    def test_another_folder_s_checkpoint_lists_the_differences(self):
        self.train(steps=4)
        answer = self.train("--resume", self.path("run"), "--run-dir", self.path("next"), "--set", "train.lr=0.02", steps=8)
        self.assertIn("train.lr: 0.01 → 0.02", answer.stderr)

    def test_joined_ranks_are_refused_once(self):
        self.train(steps=4)
        port, ranks = free_port(), []
        for rank in range(2):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            ranks.append(subprocess.Popen([ESPALIER, "train", self.run_file(8), "--set", "train.lr=0.02"],
                                          stderr=subprocess.PIPE, text=True, env=environment))
        errors = [one.communicate(timeout=60)[1] for one in ranks]
        self.assertEqual([one.returncode for one in ranks], [2, 2], errors)
        self.assertIn("train.lr: 0.01 → 0.02", errors[0])
        self.assertEqual(errors[1], "")

    def test_a_launched_job_is_refused_once_and_its_restart_keeps_its_run_file(self):
        self.train(steps=4)
        launch = ["launch", "--nproc-per-node", "2", "--max-restarts", "1", "--no-reform", "--", "train"]
        answer = run(*launch, self.run_file(8), "--set", "train.lr=0.02")
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertEqual(answer.stderr.count("train.lr: 0.01 → 0.02"), 1, answer.stderr)
        process = subprocess.Popen([ESPALIER, *launch, self.run_file(400), "--set", "checkpoint.every=5"],
                                   stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(lambda: self.steps_made("run") >= 30))
        with open(self.run_file(60)) as file:
            text = file.read()
        with open(self.path("run.toml"), "w") as file:
            file.write(text.replace("1e-2", "2e-2"))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        errors = process.communicate(timeout=90)[1]
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("run.toml was changed since the job began", errors)
        self.assertEqual(self.events("run_file_changed"), [])
        self.assertEqual(self.metrics()[-1]["step"], 400)


class Diverged(InFolder):
    WORDS = ["--set", "train.lr=1e30", "--set", "train.warmup=0", "--continue-with-changes"]

    def test_what_is_no_number_is_no_checkpoint_to_resume(self):
        self.train("--set", "checkpoint.every=5", steps=10)
        for words in ([], ["--nproc", "2"], ["--set", "checkpoint.async=true"]):
            shutil.copytree(self.path("run"), self.path("copy"))
            answer = self.train("--run-dir", self.path("copy"), "--set", "checkpoint.every=3", *self.WORDS, *words, steps=16,
                                code=5)
            self.assertRegex(answer.stderr, r"step 12: loss or values are not finite since step 1\d: no checkpoint is written")
            self.assertEqual(answer.stderr.count("no checkpoint is written"), 1)
            self.assertIn("training failed after 16 steps: loss or values are not finite since step 1", answer.stderr)
            self.assertIn("the last good checkpoint is " + self.path("copy/checkpoints/step-10"), answer.stderr)
            self.assertNotIn("done after", answer.stdout)
            self.assertEqual(self.checkpoints("copy"), ["diverged", "step-10", "step-5"])
            self.assertEqual(os.listdir(self.path("copy/checkpoints/diverged")), ["step-16"])
            again = self.train("--run-dir", self.path("copy"), "--continue-with-changes", steps=16)
            self.assertIn("step-10 at step 10", again.stderr)
            self.assertNotIn("not finite", again.stderr)
            shutil.rmtree(self.path("copy"))

    def test_a_run_without_a_good_checkpoint_says_so(self):
        answer = self.train(*self.WORDS, steps=4, code=5)
        self.assertIn("not finite since step 2", answer.stderr)
        self.assertIn("there is no good checkpoint", answer.stderr)
        self.assertIn("train.lr (now 1e+30)", answer.stderr)
        self.assertEqual(self.checkpoints(), ["diverged"])

    def test_a_run_of_skipped_steps_fails_and_keeps_the_last_good_checkpoint(self):
        words = ["--set", "train.optimizer=sgd", "--set", "train.lr=1e10", "--set", "train.clip=0", "--set", "train.warmup=0",
                 "--continue-with-changes"]
        self.train("--set", "train.optimizer=sgd", steps=5)
        for name, ranks in (("one", []), ("two", ["--nproc", "2"])):
            shutil.copytree(self.path("run"), self.path(name))
            answer = self.train("--run-dir", self.path(name), *words, *ranks, steps=30, code=5)
            self.assertIn("training failed after 30 steps", answer.stderr)
            self.assertEqual(self.checkpoints(name), ["diverged", "step-5"])
            with open(self.path(name + "/summary.json")) as file:
                self.assertEqual(json.load(file)["steps"], 30)

    def test_fifty_skipped_steps_in_a_row_end_the_run(self):
        answer = self.train(*self.WORDS, steps=200, code=5)
        self.assertRegex(answer.stderr, r"training failed after 5\d steps: 50 steps in a row were skipped")
        self.assertEqual(self.checkpoints(), ["diverged"])

    def test_the_launcher_does_not_restart_a_failed_run(self):
        answer = run("launch", "--nproc-per-node", "2", "--", "train", self.run_file(16), *self.WORDS)
        self.assertEqual(answer.returncode, 5, answer.stderr)
        self.assertIn("training failed after 16 steps", answer.stderr)
        self.assertNotIn("restarting", answer.stderr)


if __name__ == "__main__":
    unittest.main()
