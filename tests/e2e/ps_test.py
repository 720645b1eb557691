"""End-to-end tests of parameter servers: bit-identical to all-reduce for any server placement, a killed server, signals
to asynchronous ranks, resume with other servers, replay, and error messages."""
import json
import os
import signal
import subprocess
import time
import unittest

from cli_runner import ESPALIER, free_port, ranks_of, running, start, wait_until
from ranks_test import RankTestCase

SMALL = "sync.partition_mb=0.02"


class Servers(RankTestCase):
    def test_synchronous_servers_are_bit_identical_to_allreduce(self):
        self.train_ranks(2, "reduced", "run.deterministic=true")
        for name, ranks, settings in (("beside", 2, ()), ("one", 2, ("sync.servers=1",)),
                                      ("sums", 2, ("sync.update=worker",)),
                                      ("early", 2, ("sync.cross_barrier=true",)),
                                      ("dedicated", 4, ("sync.servers=2", "sync.server_ranks=dedicated"))):
            self.train_ranks(ranks, name, "sync.method=ps", SMALL, "run.deterministic=true", *settings)
            self.assertEqual(self.losses(name), self.losses("reduced"), name)

    def test_four_asynchronous_ranks_reduce_loss(self):
        for mode in ("async", "ssp"):
            answer = self.train_ranks(4, mode, "sync.method=ps", f"sync.ps_mode={mode}", SMALL, steps=30)
            losses = [one[0] for one in self.losses(mode)]
            self.assertLess(sum(losses[-5:]) / 5, sum(losses[:5]) / 5 - 0.3)
            self.assertIn("pushes by staleness", answer.stderr)

    def test_replayed_run_is_bit_identical_to_recorded_run(self):
        settings = ("sync.method=ps", "sync.ps_mode=async", SMALL)
        self.train_ranks(3, "recorded", *settings, f"sync.record={self.path('orders')}", "train.global_batch=6")
        self.train_ranks(3, "replayed", *settings, f"sync.replay={self.path('orders')}", "train.global_batch=6")
        self.assertEqual(self.losses("recorded"), self.losses("replayed"))

    def test_resumes_with_other_number_of_servers(self):
        self.train_ranks(2, "whole", "run.deterministic=true", "checkpoint.every=3")
        self.train_ranks(4, "half", "sync.method=ps", "sync.servers=2", "sync.server_ranks=dedicated", SMALL,
                         "run.deterministic=true", "checkpoint.every=3", steps=3)
        resume = f"checkpoint.resume={self.path('half')}/checkpoints/step-3"
        for name, ranks, settings in (("beside", 2, ()), ("more", 5, ("sync.servers=3", "sync.server_ranks=dedicated"))):
            self.train_ranks(ranks, name, "sync.method=ps", SMALL, "run.deterministic=true", resume, *settings)
            self.assertEqual(self.losses(name), self.losses("whole")[3:], name)

    def test_rank_files_report_pushed_and_pulled_bytes(self):
        self.train_ranks(3, "bytes", "sync.method=ps", "sync.servers=1", "sync.server_ranks=dedicated", SMALL, steps=3)
        with open(self.path("bytes/summary.json")) as file:
            S = 4 * json.load(file)["parameters"]
        for rank, sent, received in ((0, {"push": S, "pull": 0}, {"push": 0, "pull": S}),
                                     (2, {"push": 0, "pull": 2 * S}, {"push": 2 * S, "pull": 0})):
            rows = {row["algo"]: row for row in self.rank_file("bytes", rank)["comm"] if row["group"] == "ps"}
            for way in ("push", "pull"):
                self.assertEqual(rows[way]["bytes_sent"], 3 * sent[way], (rank, way))
                self.assertEqual(rows[way]["bytes_received"], 3 * received[way], (rank, way))


class ServerFailure(RankTestCase):
    def start_long(self, name, ranks, *settings):
        words = ["train", self.run_file(100000), "--nproc", str(ranks), "--run-dir", self.path(name)]
        for setting in ("run.threads=1", "train.eval_every=0", "sync.method=ps", SMALL) + settings:
            words += ["--set", setting]
        process = start(*words)
        self.wait_for_steps(name, process)
        return process

    def wait_for_steps(self, name, process):
        deadline = time.monotonic() + 60
        while self.logged_steps(name) < 3:
            self.assertLess(time.monotonic(), deadline, "no step was logged within 60 s")
            self.assertIsNone(process.poll())
            time.sleep(0.05)

    def newest_checkpoint(self, name):
        """Step of the newest checkpoint; 0 if there is none."""
        try:
            names = os.listdir(self.path(name + "/checkpoints"))
        except FileNotFoundError:
            return 0
        return max((int(one.split("-")[1]) for one in names if one.startswith("step-")), default=0)

    def test_names_killed_server_and_exits_with_3(self):
        for mode in ("sync", "async"):
            process = self.start_long(f"killed-{mode}", 3, f"sync.ps_mode={mode}", "sync.servers=1",
                                      "sync.server_ranks=dedicated")
            ranks = ranks_of(process.pid)
            self.assertEqual(len(ranks), 3)
            os.kill(ranks[2], signal.SIGKILL)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 3, errors)
            self.assertIn("rank 2 killed (SIGKILL)", errors)
            for pid in ranks.values():
                self.assertFalse(running(pid), "a rank process is still running")

    def test_workers_without_launcher_name_lost_server(self):
        port = free_port()
        secret = self.path("secret")
        with open(secret, "w") as file:
            file.write("0123456789abcdef0123456789abcdef")
        os.chmod(secret, 0o600)
        for mode in ("sync", "async"):
            processes = []
            for rank in range(3):
                environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3",
                                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ESPALIER_SECRET_FILE=secret)
                words = [ESPALIER, "train", self.run_file(100000), "--run-dir", self.path("lost-" + mode)]
                for setting in ("run.threads=1", "train.eval_every=0", "sync.method=ps", SMALL, f"sync.ps_mode={mode}",
                                "sync.servers=1", "sync.server_ranks=dedicated"):
                    words += ["--set", setting]
                processes.append(subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL,
                                                  stderr=subprocess.PIPE, text=True))
            self.wait_for_steps("lost-" + mode, processes[0])
            processes[2].kill()
            processes[2].communicate(timeout=60)
            for process in processes[:2]:
                _, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 3, errors)
                self.assertIn("rank 2", errors)

    # One worker and one server alternate in every mode, so the run is deterministic: the restored server state (values
    # and momentum) is checked bit for bit even in asynchronous mode.
    def test_resumes_from_checkpoint_after_server_was_killed(self):
        for mode, ranks in (("sync", 3), ("async", 2), ("ssp", 2)):
            settings = ("sync.servers=1", "sync.server_ranks=dedicated", "run.deterministic=true", f"sync.ps_mode={mode}",
                        "train.schedule=constant", "checkpoint.every=2")
            whole = "whole-" + mode
            process = self.start_long(whole, ranks, *settings)
            self.assertTrue(wait_until(lambda: self.newest_checkpoint(whole) or process.poll() is not None))
            os.kill(ranks_of(process.pid)[ranks - 1], signal.SIGKILL)
            process.communicate(timeout=60)
            kept = self.newest_checkpoint(whole)
            words = ["--nproc", str(ranks)]
            for setting in ("run.threads=1", "train.eval_every=0", "sync.method=ps", SMALL) + settings:
                words += ["--set", setting]
            self.train(*words, "--run-dir", self.path(whole), steps=kept + 4)
            self.train(*words, "--run-dir", self.path("straight-" + mode), steps=kept + 4)
            self.assertEqual(self.losses(whole)[-4:], self.losses("straight-" + mode)[-4:], mode)

    def test_asynchronous_workers_resume_after_server_was_killed(self):
        settings = ("sync.servers=1", "sync.server_ranks=dedicated", "sync.ps_mode=async", "checkpoint.every=2",
                    "train.schedule=constant")
        process = self.start_long("restarted", 3, *settings)
        self.assertTrue(wait_until(lambda: self.newest_checkpoint("restarted") or process.poll() is not None))
        os.kill(ranks_of(process.pid)[2], signal.SIGKILL)
        process.communicate(timeout=60)
        kept = self.newest_checkpoint("restarted")
        words = ["--nproc", "3", "--run-dir", self.path("restarted")]
        for setting in ("run.threads=1", "train.eval_every=0", "sync.method=ps", SMALL) + settings:
            words += ["--set", setting]
        self.train(*words, steps=kept + 20)
        after = [m for m in self.metrics("restarted") if m["step"] > kept][-20:]
        self.assertEqual([m["step"] for m in after], list(range(kept + 1, kept + 21)))
        with open(self.path("restarted/summary.json")) as file:
            self.assertEqual(json.load(file)["restarts"], 1)

    def test_signal_stops_all_ranks_at_one_step_with_checkpoint(self):
        for mode in ("sync", "async"):
            name = f"signalled-{mode}"
            process = self.start_long(name, 3, f"sync.ps_mode={mode}", "sync.servers=1", "sync.server_ranks=dedicated")
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 75, errors)
            steps = [int(one.split("-")[1]) for one in os.listdir(self.path(name + "/checkpoints"))
                     if one.startswith("step-")]
            self.assertEqual(steps, [self.metrics(name)[-1]["step"]])


class InvalidOptions(RankTestCase):
    def test_rejects_unsupported_combinations(self):
        for settings, words in ((("sync.servers=3",), "sync.servers"),
                                (("sync.server_ranks=dedicated",), "dedicated"),
                                (("sync.ps_mode=later",), "sync.ps_mode"),
                                (("sync.ps_mode=async", "sync.update=worker"), "sync.update"),
                                (("sync.ps_mode=async", "sync.aggregate=median"), "sync.aggregate"),
                                (("sync.aggregate=trimmed_mean",), "sync.trim"),
                                (("sync.replay=nowhere",), "sync.replay"),
                                (("sync.ps_mode=async", "run.deterministic=true"), "run.deterministic"),
                                (("parallel.tp=2",), "parallel.tp"),
                                (("sync.offload=host",), "sync.offload")):
            answer = self.train_ranks(2, "refused", "sync.method=ps", *settings, code=2)
            self.assertIn(words, answer.stderr)

    def test_one_rank_cannot_have_dedicated_server(self):
        answer = self.train("--set", "sync.method=ps", "--set", "sync.server_ranks=dedicated", code=2)
        self.assertIn("sync.server_ranks: got dedicated; expected at least 2 ranks", answer.stderr)

    def test_rejects_order_folders_before_first_step(self):
        for key, name in (("record", "text.txt"), ("replay", "nowhere")):
            answer = self.train_ranks(2, "refused", "sync.method=ps", "sync.ps_mode=async", f"sync.{key}={self.path(name)}",
                                      code=4)
            self.assertIn(f"sync.{key}: ", answer.stderr)
            self.assertIn(self.path(name), answer.stderr)
            self.assertFalse(os.path.exists(self.path("refused/metrics.jsonl")))

    def test_error_names_key_of_missing_file(self):
        for key, name, settings in (("sync.topology", "none.graph", ("sync.method=gossip",)),
                                    ("parallel.schedule", "none.pipeline", ("parallel.pp=2",))):
            answer = self.train_ranks(2, "refused", *settings, f"{key}={self.path(name)}", code=4)
            self.assertIn(f"{key}: cannot open {self.path(name)}", answer.stderr)


if __name__ == "__main__":
    unittest.main()
