"""End-to-end tests of output: stdout and stderr, the metrics of a run, and `espalier compare` over run folders."""
import json
import os
import pty
import re
import subprocess
import unittest

from cli_runner import ESPALIER, run
from ranks_test import RankTestCase

STEP = re.compile(r"^step +\d+/\d+  loss \d")


class OutputStreams(RankTestCase):
    def check_step_lines(self, answer, steps):
        lines = answer.stdout.splitlines()
        self.assertEqual(len([line for line in lines if STEP.match(line)]), steps, answer.stdout)
        self.assertEqual(lines[steps].split(",")[0], f"done after {steps} steps")
        self.assertNotIn("loss", answer.stderr.replace("aux_loss", ""))
        self.assertNotIn("done after", answer.stderr)

    def test_step_lines_go_to_stdout_and_notes_to_stderr(self):
        one = self.train_ranks(1, "one", steps=4)
        self.check_step_lines(one, 4)
        self.assertRegex(one.stderr.splitlines()[0], r"^tiny: gpt .* 1 rank \(allreduce, dp=1\) of 1 thread")
        two = self.train_ranks(2, "two", "sync.compress=int8", "sync.feedback=ef", steps=4)
        self.check_step_lines(two, 4)
        self.assertIn("2 ranks (allreduce compress=int8 feedback=ef, dp=2) of 1 thread", two.stderr.splitlines()[0])
        launched = run("launch", "--nproc-per-node", "2", "--", "train", self.run_file(4), "--run-dir", self.path("launched"),
                       "--set", "run.threads=1")
        self.assertEqual(launched.returncode, 0, launched.stderr)
        self.check_step_lines(launched, 4)

    def test_logs_first_step_for_any_interval(self):
        self.train("--set", "log.every=5", "--set", "train.eval_every=0", steps=12)
        self.assertEqual([line["step"] for line in self.metrics()], [1, 5, 10, 12])

    def train_into(self, stdout, ranks):
        with open(self.path("errors"), "w") as errors:
            code = subprocess.run([ESPALIER, "train", self.run_file(30), "--nproc", ranks, "--resume", "none", "--set", "run.threads=1"],
                                  stdout=stdout, stderr=errors, timeout=100,
                                  preexec_fn=(lambda: os.close(1)) if stdout is None else None).returncode
        with open(self.path("errors")) as file:
            errors = file.read()
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.checkpoints(), ["step-30"])
        self.assertEqual(len(self.metrics()), 30)
        self.assertEqual(errors.count("stdout cannot be written"), 1, errors)
        with open(self.path("run/run.toml")) as file:
            self.assertNotIn("loss", file.read().replace("aux_loss", "").replace("z_loss", ""))

    def test_run_continues_when_stdout_is_closed(self):
        for ranks in ("1", "2"):
            read_end, write_end = os.pipe()
            os.close(read_end)  # like `| head`, which closes the pipe
            self.train_into(write_end, ranks)
            os.close(write_end)
            with open("/dev/full", "w") as full:
                self.train_into(full, ranks)
            self.train_into(None, ranks)

    def test_draws_live_line_on_terminal(self):
        for ranks in ("1", "2"):
            parent_end, child_end = pty.openpty()
            process = subprocess.Popen([ESPALIER, "train", self.run_file(5), "--nproc", ranks, "--run-dir", self.path("live" + ranks)],
                                       stdin=subprocess.DEVNULL, stdout=child_end, stderr=subprocess.PIPE, text=True)
            os.close(child_end)
            shown = b""
            try:
                while chunk := os.read(parent_end, 65536):
                    shown += chunk
            except OSError:
                pass  # EIO: the other end is closed
            errors = process.communicate(timeout=60)[1]
            os.close(parent_end)
            self.assertEqual(process.returncode, 0, errors)
            self.assertIn(b"\r\x1b[K", shown)
            self.assertIn(b"done after 5 steps", shown)
            self.assertNotIn("\x1b", errors)
            self.assertNotIn("loss", errors)


class Metrics(RankTestCase):
    def summary(self, name):
        with open(self.path(name + "/summary.json")) as file:
            return json.load(file)

    def test_measures_machine_peak_once(self):
        cache = {"XDG_CACHE_HOME": self.path("cache")}
        for name, ranks in (("first", "1"), ("again", "1"), ("two", "2")):
            answer = run("train", self.run_file(3), "--run-dir", self.path(name), "--nproc", ranks, "--set", f"run.threads={2 // int(ranks)}",
                         env=cache)
            self.assertEqual(answer.returncode, 0, answer.stderr)
        files = os.listdir(self.path("cache/espalier"))
        self.assertEqual(len(files), 1 if os.cpu_count() >= 2 else 2, files)
        with open(self.path("cache/espalier/" + files[0])) as file:
            kept = json.load(file)
        peaks = [self.summary(name)["hardware"]["peak_flops"] for name in ("first", "again", "two")]
        self.assertEqual(peaks, [kept["flops_per_s"]] * 3)

    def test_step_line_covers_all_ranks(self):
        """The ratios FLOP/s to tokens/s, and MFU to FLOP/s, are equal on one rank and on two."""
        ratios = []
        for name, ranks in (("one", 1), ("two", 2)):
            line = self.train_ranks(ranks, name, "train.eval_every=0", steps=400).stdout.splitlines()[-4]
            found = re.search(r"  (\d+) tok/s  ([0-9.]+) GFLOP/s", line)
            self.assertTrue(found, line)
            ratios.append(float(found[2]) / float(found[1]))
            last = self.metrics(name)[-1]
            peak = self.summary(name)["hardware"]["peak_flops"]
            self.assertAlmostEqual(last["mfu"] * peak * 1e-9 / float(found[2]), 1, delta=0.05)
        self.assertAlmostEqual(ratios[0] / ratios[1], 1, delta=0.05)

    def test_bytes_sent_match_rank_files(self):
        for name, words in (("plain", ()), ("coded", ("sync.compress=int8", "sync.feedback=ef"))):
            answer = self.train_ranks(2, name, "train.eval_every=0", "data.val_fraction=0", "checkpoint.at_end=false", *words, steps=20)
            summary = self.summary(name)
            self.assertEqual(summary["method"], "allreduce")
            self.assertEqual(summary["compress"], words[0].split("=")[1] if words else "none")
            sent = [sum(row["bytes_sent"] for row in self.rank_file(name, rank)["comm"]) / 20 for rank in (0, 1)]
            # Rank files also count communication outside of steps.
            self.assertAlmostEqual(summary["bytes_sent_per_step"] / (sum(sent) / 2), 1, delta=0.1)
            self.assertGreaterEqual(summary["max_bytes_sent_per_step"], summary["bytes_sent_per_step"])
            self.assertAlmostEqual(self.metrics(name)[-1]["bytes_sent_per_step"] / summary["bytes_sent_per_step"], 1, delta=0.1)
            self.assertRegex(answer.stdout.splitlines()[1], r"  mem [0-9.]+ [KM]iB/rank \(max\)  sent [0-9.]+ KiB/rank "
                             + (r"\(allreduce int8 \+ ef\)$" if words else r"\(allreduce\)$"))
        plain, coded = (self.summary(name)["bytes_sent_per_step"] for name in ("plain", "coded"))
        self.assertLess(coded, 0.5 * plain)

    def test_step_bytes_exclude_evaluation_and_checkpoints(self):
        words = ("parallel.tp=2", "data.val_fraction=0.1")
        self.train_ranks(2, "steps", *words, "train.eval_every=0", "checkpoint.at_end=false", steps=6)
        self.train_ranks(2, "evaluated", *words, "train.eval_every=2", "train.eval_batches=20", "checkpoint.every=2", steps=6)
        alone, beside = (self.summary(name)["bytes_sent_per_step"] for name in ("steps", "evaluated"))
        self.assertAlmostEqual(beside / alone, 1, delta=0.02)

    def test_summary_has_last_validation_loss_after_resume(self):
        self.train("--set", "train.eval_every=10")
        evaluated = [line["val_loss"] for line in self.metrics() if "val_loss" in line]
        self.assertEqual(self.summary("run")["val_loss"], evaluated[-1])


class Compare(RankTestCase):
    def table(self, *words, code=0):
        answer = run("compare", *words)
        self.assertEqual(answer.returncode, code, answer.stderr)
        return answer

    def setUp(self):
        super().setUp()
        self.train_ranks(2, "runs/z2", "sync.method=zero2", steps=3)
        self.train_ranks(2, "runs/coded", "sync.compress=topk:0.1", "sync.feedback=ef", steps=4)

    def test_prints_one_table_for_all_runs(self):
        lines = self.table(self.path("runs/z2"), self.path("runs/coded")).stdout.splitlines()
        self.assertEqual(re.split(r"  +", lines[0]), ["run", "method", "compressor", "layout", "steps", "val loss", "tokens/s",
                                                      "sent/step/rank", "peak memory", "wall time"])
        self.assertRegex(lines[1], r"^z2 +zero2 +none +dp=2 +3 +\d\.\d{4} +\d+ +[0-9.]+ KiB +[0-9.]+ [KM]iB +[0-9.]+s$")
        self.assertRegex(lines[2], r"^coded +allreduce +topk:0.1 \+ ef +dp=2 +4 ")
        self.assertEqual(len(lines), 3)
        rows = json.loads(self.table(self.path("runs"), "--json", "-").stdout)
        self.assertEqual([row["run"] for row in rows], ["coded", "z2"])
        with open(self.path("runs/z2/summary.json")) as file:
            summary = json.load(file)
        for key in ("val_loss", "tokens_per_s", "bytes_sent_per_step", "peak_bytes", "wall_s", "steps", "method"):
            self.assertEqual(rows[1][key], summary[key])

    def test_prints_markdown_table(self):
        os.rename(self.path("runs/z2"), self.path("runs/a|b\x1b[2J"))
        lines = self.table(self.path("runs"), "--markdown").stdout.splitlines()
        self.assertEqual(lines[0].count("|"), 11)
        self.assertTrue(lines[1].startswith("|---"))
        self.assertTrue(lines[2].startswith("| a\\|b?[2J | zero2 |"), lines[2])

    def test_prints_dash_for_missing_values(self):
        os.remove(self.path("runs/z2/summary.json"))
        with open(self.path("runs/z2/metrics.jsonl"), "w") as file:
            file.write('{"step": 1, "loss": 3, "val_loss": 2.5}\n{"step": 2, "loss": 3}\n')
        line = self.table(self.path("runs/z2")).stdout.splitlines()[1]
        self.assertEqual(re.split(r"  +", line), ["z2", "zero2", "none", "dp=2", "2", "2.5000", "-", "-", "-", "-"])
        os.remove(self.path("runs/z2/run.toml"))
        self.assertEqual(self.table(self.path("runs/z2")).stdout.splitlines()[1].split()[1:4], ["-", "-", "-"])

    def test_names_folders_without_run(self):
        os.mkdir(self.path("empty"))
        some = self.table(self.path("empty"), self.path("runs/z2"), self.path("nowhere"))
        self.assertEqual(len(some.stdout.splitlines()), 2)
        self.assertIn(self.path("empty") + ": got a folder without a run", some.stderr)
        self.assertIn(self.path("nowhere") + ": No such file", some.stderr)
        none = self.table(self.path("empty"), self.path("nowhere"), code=4)
        self.assertEqual(none.stdout, "")
        self.assertIn("without a run", none.stderr)
        self.assertIn("nowhere", none.stderr)
        self.table(code=2)

    def test_names_unreadable_run_and_lists_others(self):
        os.mkdir(self.path("runs/pipe"))
        os.mkfifo(self.path("runs/pipe/metrics.jsonl"))
        os.mkdir(self.path("runs/link"))
        os.symlink(self.path("nowhere"), self.path("runs/link/metrics.jsonl"))
        answer = self.table(self.path("runs"))
        self.assertEqual([line.split()[0] for line in answer.stdout.splitlines()], ["run", "coded", "link", "pipe", "z2"])
        self.assertIn("runs/link: metrics.jsonl: got a symbolic link; expected a regular file", answer.stderr)
        self.assertIn("runs/pipe: metrics.jsonl: got a pipe; expected a regular file", answer.stderr)
        report = run("report", self.path("runs/pipe"), self.path("runs/z2"), "--out", self.path("report.html"))
        self.assertEqual(report.returncode, 0, report.stderr)
        self.assertIn("got a pipe", report.stderr)
        self.assertEqual(run("report", self.path("runs/pipe")).returncode, 4)
        metrics = run("metrics", self.path("runs"), self.path("nowhere"))
        self.assertEqual(metrics.returncode, 0, metrics.stderr)
        self.assertIn('espalier_step{run="z2"} 3', metrics.stdout)
        self.assertIn('espalier_unreadable_files{run="pipe"} 1', metrics.stdout)

    def test_names_damaged_summary_and_keeps_row(self):
        with open(self.path("runs/z2/summary.json"), "w") as file:
            file.write('{"world":')
        answer = self.table(self.path("runs/z2"))
        self.assertIn("summary.json", answer.stderr)
        self.assertRegex(answer.stdout.splitlines()[1], r"^z2 +zero2 ")

    def test_distinguishes_folders_with_equal_names(self):
        os.makedirs(self.path("other"))
        os.rename(self.path("runs/coded"), self.path("other/z2"))
        rows = json.loads(self.table(self.path("runs/z2"), self.path("other/z2"), self.path("runs"), "--json", "-").stdout)
        self.assertEqual([row["run"] for row in rows], ["runs/z2", "other/z2"])


if __name__ == "__main__":
    unittest.main()
