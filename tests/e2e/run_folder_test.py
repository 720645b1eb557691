"""End-to-end tests of a run folder that is used by several runs: rerun, restart from scratch, concurrent runs, failed
starts, changed run files, and divergence."""
import json
import os
import shutil
import signal
import subprocess
import unittest

from cli_runner import ESPALIER, free_port, ranks_of, run, wait_until
from train_test import TempFolderTestCase


class Rerun(TempFolderTestCase):
    """A second run in the same run folder."""

    def test_rerun_leaves_finished_run_unchanged(self):
        self.train()
        before = self.files()
        for words in ([], ["--set", "train.steps=5"], ["--set", "train.steps=0"], ["--nproc", "2"]):
            answer = self.train(*words)
            self.assertIn("nothing left to do", answer.stderr)
            self.assertIn("step-20 is at step 20", answer.stderr)
            for option in ("train.steps", "--resume none", "--run-dir"):
                self.assertIn(option, answer.stderr)
            self.assertEqual({k: v for k, v in self.files().items() if not k.startswith("flight/")}, before)
        self.assertIn("resumed from", self.train(steps=22).stderr)
        self.assertEqual([m["step"] for m in self.metrics()], list(range(1, 23)))

    def test_writes_summary_of_run_killed_after_last_checkpoint(self):
        self.train()
        os.remove(self.path("run/summary.json"))
        self.assertIn("done after 20 steps", self.train().stdout)
        with open(self.path("run/summary.json")) as file:
            summary = json.load(file)
        self.assertEqual(summary["final_loss"], self.metrics()[-1]["loss"])

    def test_resume_none_moves_previous_run_aside(self):
        self.train(steps=30)
        before = self.files()
        answer = self.train("--resume", "none", "--set", "model.dim=64", steps=10)
        self.assertIn(" to " + self.path("run/before-1"), answer.stderr)
        self.assertEqual(self.files("run/before-1"), before)
        self.assertEqual(self.checkpoints(), ["step-10"])
        self.assertEqual([m["step"] for m in self.metrics()], list(range(1, 11)))
        self.train("--resume", "none", steps=12)
        self.assertEqual(self.checkpoints("run/before-2"), ["step-10"])
        self.assertIn("step-12 at step 12", self.train(steps=14).stderr)
        self.assertFalse(os.path.exists(self.path("run/before-3")))

    def test_failed_start_moves_nothing_aside(self):
        self.train()
        before = self.files()
        self.train("--resume", "none", "--set", "data.train=" + self.path("nowhere.txt"), code=4)
        self.assertEqual(self.files(), before)

    def test_resume_from_older_step_moves_later_checkpoints_aside(self):
        self.train("--set", "checkpoint.every=5", "--set", "checkpoint.keep=0")
        self.train("--resume", self.path("run/checkpoints/step-10"), steps=12)
        self.assertEqual(self.checkpoints(), ["step-10", "step-12", "step-5"])
        self.assertEqual(self.checkpoints("run/before-1"), ["step-15", "step-20"])
        self.assertEqual(len(self.metrics("run/before-1")), 20)
        self.assertEqual(len(self.metrics()), 12)

    def test_resume_from_other_run_moves_own_checkpoints_aside(self):
        self.train("--run-dir", self.path("other"), steps=8)
        self.train(steps=30)
        self.train("--resume", self.path("other"), steps=12)
        self.assertEqual(self.checkpoints(), ["step-12"])
        self.assertEqual(self.checkpoints("run/before-1"), ["step-30"])
        self.assertEqual(self.checkpoints("other"), ["step-8"])

    def test_external_checkpoint_folder_stays_on_its_disk(self):
        words = ["--set", "checkpoint.dir=" + self.path("elsewhere")]
        self.train(*words, steps=30)
        self.train(*words, "--resume", "none", steps=10)
        self.assertEqual(sorted(os.listdir(self.path("elsewhere"))), ["before-1", "step-10"])
        self.assertEqual(os.listdir(self.path("elsewhere/before-1")), ["step-30"])
        self.assertEqual(len(self.metrics("run/before-1")), 30)

    def test_external_checkpoint_folder_may_be_moved(self):
        self.train("--set", "checkpoint.dir=" + self.path("elsewhere"), steps=4)
        os.rename(self.path("elsewhere"), self.path("moved"))
        os.rename(self.path("run"), self.path("other"))
        words = ["--run-dir", self.path("other"), "--set", "checkpoint.dir=" + self.path("moved")]
        self.assertIn("moved/step-4 at step 4", self.train(*words, steps=6).stderr)
        self.assertIn("moved/step-6 at step 6", self.train(*words, steps=8).stderr)

    def test_rejects_checkpoint_folder_of_other_run(self):
        self.train(steps=10)
        before = self.files()
        self.train("--run-dir", self.path("used"), steps=4)
        words = ["--set", "checkpoint.dir=" + self.path("run/checkpoints"), "--set", "checkpoint.every=1"]
        for name in ("new", "used"):
            for steps, more in ((13, []), (3, []), (13, ["--nproc", "2"]), (13, ["--continue-with-changes"])):
                answer = self.train("--run-dir", self.path(name), *words, *more, steps=steps, code=2)
                for text in (f"checkpoint.dir = {self.path('run/checkpoints')}: got checkpoints of another run",
                             f"run folder {self.path('run')}", "Set another checkpoint.dir", "--resume"):
                    self.assertIn(text, answer.stderr)
                self.assertEqual(self.files(), before)
        self.assertFalse(os.path.exists(self.path("new")))
        self.assertIn("step-10 at step 10", self.train(*words, steps=12).stderr)  # its own, by their full path

    def test_does_not_replace_run_file(self):
        with open(self.run_file(4)) as file:
            text = file.read()
        for words in ([], ["--nproc", "2"]):
            answer = self.train("--run-dir", self.folder, *words, steps=4, code=2)
            self.assertIn(f"run folder {self.folder}: got the folder of the run file", answer.stderr)
            self.assertEqual(answer.stderr.count("\n"), 1, answer.stderr)
            with open(self.path("run.toml")) as file:
                self.assertEqual(file.read(), text)
            self.assertEqual(sorted(os.listdir(self.folder)), ["run.toml", "text.txt"])
        self.train(steps=4)
        os.mkdir(self.path("copy"))
        shutil.copy(self.path("run/run.toml"), self.path("copy"))  # a resolved file may be replaced by a resolved file
        answer = run("train", self.path("copy/run.toml"), "--run-dir", self.path("copy"))
        self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_suggests_set_option_for_bare_setting(self):
        answer = run("train", self.run_file(), "train.lr=1e-3")
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("Use --set train.lr=1e-3", answer.stderr)
        answer = run("train", "train.lr=1e-3")
        self.assertIn("Use --set train.lr=1e-3", answer.stderr)
        answer = run("train", self.run_file(), self.run_file())
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("takes one run file", answer.stderr)

    def test_names_damaged_lines_and_unusable_checkpoints(self):
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
        self.assertIn("Skipped: ", answer.stderr)
        self.assertIn("step-30 (got a symbolic link", answer.stderr)

    def test_rejects_second_run_in_same_folder(self):
        first = subprocess.Popen([ESPALIER, "train", self.run_file(100000)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        self.assertTrue(wait_until(lambda: self.logged_steps("run") >= 3))
        for words in ([], ["--nproc", "2"], ["--resume", "none"]):
            answer = run("train", self.path("run.toml"), *words)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(f"another run uses it (process {first.pid} ", answer.stderr)
            self.assertEqual(answer.stderr.count("\n"), 1, answer.stderr)
        self.assertIsNone(first.poll())
        first.send_signal(signal.SIGTERM)
        self.assertEqual(first.wait(60), 75)
        steps = [m["step"] for m in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertFalse(os.path.exists(self.path("run/run.lock")))

    def test_killed_run_releases_folder_lock(self):
        first = subprocess.Popen([ESPALIER, "train", self.run_file(100000)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertTrue(wait_until(lambda: self.logged_steps("run") >= 3))
        first.kill()
        first.wait()
        self.train(steps=5)

    def test_failed_start_leaves_no_folder(self):
        for words in ([], ["--nproc", "2"]):
            self.train(*words, "--set", "data.train=" + self.path("nowhere.txt"), code=4)
            self.train(*words, "--set", "model.arch=bert", "--set", "data.objective=pairs", code=2)
            self.assertFalse(os.path.exists(self.path("run")))
        os.mkdir(self.path("run"))
        self.train("--set", "data.train=" + self.path("nowhere.txt"), code=4)
        self.assertEqual(os.listdir(self.path("run")), [])  # the folder was created by the user
        answer = run("metrics", self.path("run"))
        self.assertEqual(answer.returncode, 4)
        self.assertIn("without a run", answer.stderr)

    def test_resumes_from_run_file_in_folder(self):
        self.train("--run-dir", self.path("other"), steps=2)
        for words in (["--resume", "none"], ["--resume", self.path("other")]):
            self.train(*words, steps=4)
            answer = run("train", self.path("run/run.toml"), "--set", "train.steps=6")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertIn("step-4 at step 4", answer.stderr)
            self.assertEqual(self.metrics()[-1]["step"], 6)

    def test_rejects_invalid_checkpoint_folder_before_first_step(self):
        for folder in (self.path("text.txt"), self.path("text.txt/below"), "/proc/espalier/deep"):
            for words in ([], ["--nproc", "2"]):
                answer = self.train("--set", "checkpoint.dir=" + folder, *words, code=4)
                self.assertIn("checkpoint folder " + folder, answer.stderr)
                self.assertIn("Set checkpoint.dir to another folder", answer.stderr)
                self.assertNotIn("step ", answer.stdout)
                self.assertFalse(os.path.exists(self.path("run")))
        self.train("--set", "checkpoint.dir=" + self.path("new/er"), "--set", "data.train=" + self.path("nowhere"), code=4)
        self.assertFalse(os.path.exists(self.path("new")))

    def test_rejects_run_folder_with_other_files(self):
        self.train("--run-dir", self.path("runs/a"), steps=2)
        answer = run("convert", self.path("runs/a"), self.path("hf"))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        for name, what in (("hf", "a Hugging Face folder"), ("runs", "a folder that contains run folders"),
                           ("runs/a/checkpoints", "a folder of checkpoints"), ("runs/a/checkpoints/step-2", "a checkpoint")):
            before = os.listdir(self.path(name))
            for words in ([], ["--nproc", "2"]):
                answer = self.train("--run-dir", self.path(name), *words, code=2)
                self.assertEqual(answer.stderr.count(f"run folder {self.path(name)}: got {what}; expected"), 1, answer.stderr)
            self.assertEqual(os.listdir(self.path(name)), before)


class LauncherRestart(TempFolderTestCase):
    """Restart by a launcher: its snapshot folder in memory records whether the job has started in the run folder."""

    def restart_job(self):
        environment = {"TORCHELASTIC_RESTART_COUNT": "1", "ESPALIER_SNAPSHOTS": self.path("memory")}
        return run("train", self.run_file(30), "--resume", "none", env=environment).stderr

    def test_job_killed_before_start_does_not_resume_previous_run(self):
        self.train(steps=20)
        os.mkdir(self.path("memory"))
        errors = self.restart_job()
        self.assertIn(" to " + self.path("run/before-1"), errors)
        self.assertNotIn("resumed from", errors)
        self.assertEqual(self.checkpoints("run/before-1"), ["step-20"])

    def test_job_killed_after_start_resumes_own_checkpoint(self):
        self.train(steps=20)
        os.mkdir(self.path("memory"))
        with open(self.path("memory/begun"), "w"):
            pass
        self.assertIn("step-20 at step 20", self.restart_job())


class StoredRunFile(TempFolderTestCase):
    """A run folder stores the run file of its run."""
    REMEDIES = ("--run-dir", "--resume none", "--continue-with-changes")

    def read_stored(self):
        return {name: held for name, held in self.files().items() if not name.startswith("flight/")}

    def assert_rejected(self, *words, changes, **more):
        before = self.read_stored()
        answer = self.train(*words, code=2, **more)
        for one in (*changes, *self.REMEDIES):
            self.assertIn(one, answer.stderr)
        self.assertEqual(answer.stderr.count("espalier:"), 1, answer.stderr)
        self.assertTrue(self.read_stored() == before)
        return answer

    def train_here(self, *words):
        return subprocess.run([os.path.realpath(ESPALIER), "train", *words], cwd=self.folder, capture_output=True, text=True,
                              timeout=100)

    def events(self, kind):
        with open(self.path("run/events.jsonl")) as file:
            return [one for one in map(json.loads, file) if one["event"] == kind]

    def test_rejects_changed_keys_that_affect_result(self):
        self.train(steps=4)
        for words in ([], ["--nproc", "2"]):
            for steps in (4, 8):
                self.assert_rejected("--set", "model.layers=4", "--set", "train.lr=0.02", *words, steps=steps,
                                     changes=["model.layers: 2 → 4", "train.lr: 0.01 → 0.02"])
        self.assert_rejected("--set", "sync.method=zero1", "--nproc", "2", changes=["sync.method: allreduce → zero1"])
        self.assert_rejected("--set", "run.seed=4", "--resume", self.path("run/checkpoints/step-4"), changes=["run.seed: 3 → 4"])
        self.assert_rejected(dropout=0.1, changes=["model.dropout: 0.0 → 0.1"])

    def test_lists_changed_keys_without_effect_on_result(self):
        self.train(steps=4)
        answer = self.train("--set", "log.every=2", "--set", "train.micro_batch=4", "--set", "model.kv_heads=2", steps=8)
        self.assertIn("train.steps: 4 → 8", answer.stderr)
        self.assertIn("log.every: 1 → 2", answer.stderr)
        self.assertIn("train.schedule = cosine now ends at step 8, not 4", answer.stderr)
        self.assertNotIn("kv_heads", answer.stderr)
        self.assertNotIn("data.cache", answer.stderr)  # not set by the user
        self.assertEqual(self.metrics()[-1]["step"], 8)

    def test_records_accepted_changes(self):
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
        self.assert_rejected(steps=10, changes=["train.lr: 0.03 → 0.01"])
        self.assertEqual(len(self.events("run_file_changed")), 2)

    def test_rejects_run_folder_of_other_run_file(self):
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

    def test_copied_checkpoints_keep_their_run_file(self):
        self.train(steps=4)
        os.mkdir(self.path("copy"))
        shutil.copytree(self.path("run/checkpoints"), self.path("copy/checkpoints"))
        answer = self.train("--run-dir", self.path("copy"), "--set", "train.lr=0.02", steps=8, code=2)
        self.assertIn("train.lr: 0.01 → 0.02", answer.stderr)
        self.train("--run-dir", self.path("copy"), steps=8)
        answer = self.train("--run-dir", self.path("fresh"), "--set", "checkpoint.dir=" + self.path("run/checkpoints"),
                            "--set", "train.lr=0.02", steps=8, code=2)
        self.assertIn("got checkpoints of another run", answer.stderr)

    def test_lists_differences_to_checkpoint_of_other_folder(self):
        self.train(steps=4)
        answer = self.train("--resume", self.path("run"), "--run-dir", self.path("next"), "--set", "train.lr=0.02", steps=8)
        self.assertIn("train.lr: 0.01 → 0.02", answer.stderr)

    def test_externally_started_ranks_report_changed_keys_once(self):
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

    def test_launched_job_is_rejected_once_and_keeps_run_file_on_restart(self):
        self.train(steps=4)
        launch = ["launch", "--nproc-per-node", "2", "--max-restarts", "1", "--no-reform", "--", "train"]
        answer = run(*launch, self.run_file(8), "--set", "train.lr=0.02")
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertEqual(answer.stderr.count("train.lr: 0.01 → 0.02"), 1, answer.stderr)
        process = subprocess.Popen([ESPALIER, *launch, self.run_file(400), "--set", "checkpoint.every=5"],
                                   stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(lambda: self.logged_steps("run") >= 30))
        with open(self.run_file(60)) as file:
            text = file.read()
        with open(self.path("run.toml"), "w") as file:
            file.write(text.replace("1e-2", "2e-2"))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        errors = process.communicate(timeout=90)[1]
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("run.toml has changed since the job began", errors)
        self.assertEqual(self.events("run_file_changed"), [])
        self.assertEqual(self.metrics()[-1]["step"], 400)


class Divergence(TempFolderTestCase):
    WORDS = ["--set", "train.lr=1e30", "--set", "train.warmup=0", "--continue-with-changes"]

    def test_does_not_resume_checkpoint_with_nan(self):
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

    def test_reports_missing_good_checkpoint(self):
        answer = self.train(*self.WORDS, steps=4, code=5)
        self.assertIn("not finite since step 2", answer.stderr)
        self.assertIn("there is no good checkpoint", answer.stderr)
        self.assertIn("train.lr (now 1e+30)", answer.stderr)
        self.assertEqual(self.checkpoints(), ["diverged"])

    def test_fails_after_skipped_steps_and_keeps_last_good_checkpoint(self):
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

    def test_run_that_ends_with_skipped_steps_fails(self):
        words = ["--set", "train.weight_decay=100", "--set", "train.lr=0.1", "--continue-with-changes"]
        self.train(steps=5)
        answer = self.train(*words, steps=17, code=5)
        self.assertRegex(answer.stderr, r"training failed after 17 steps: the last \d+ steps were skipped")
        self.assertIn("the last good checkpoint is " + self.path("run/checkpoints/step-5"), answer.stderr)
        self.assertEqual(self.checkpoints(), ["diverged", "step-5"])

    def test_fifty_consecutive_skipped_steps_end_the_run(self):
        answer = self.train(*self.WORDS, steps=200, code=5)
        self.assertRegex(answer.stderr, r"training failed after 5\d steps: 50 steps in a row were skipped")
        self.assertEqual(self.checkpoints(), ["diverged"])

    def test_launcher_does_not_restart_diverged_run(self):
        answer = run("launch", "--nproc-per-node", "2", "--", "train", self.run_file(16), *self.WORDS)
        self.assertEqual(answer.returncode, 5, answer.stderr)
        self.assertIn("training failed after 16 steps", answer.stderr)
        self.assertNotIn("restarting", answer.stderr)


if __name__ == "__main__":
    unittest.main()
