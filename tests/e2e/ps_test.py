"""Parameter servers with the real binary: the same bits as all-reduce wherever they stand, a server that is killed,
signals to ranks at their own pace, resuming with other servers, replaying, and refusals."""
import json
import os
import signal
import subprocess
import time
import unittest

from driving import ESPALIER, free_port, ranks_of, running, start, wait_until
from ranks_test import OnRanks

SMALL = "sync.partition_mb=0.02"


class Servers(OnRanks):
    def test_synchronous_servers_give_the_bits_of_allreduce(self):
        self.train_ranks(2, "reduced", "run.deterministic=true")
        for name, ranks, settings in (("beside", 2, ()), ("one", 2, ("sync.servers=1",)),
                                      ("sums", 2, ("sync.update=worker",)),
                                      ("early", 2, ("sync.cross_barrier=true",)),
                                      ("dedicated", 4, ("sync.servers=2", "sync.server_ranks=dedicated"))):
            self.train_ranks(ranks, name, "sync.method=ps", SMALL, "run.deterministic=true", *settings)
            self.assertEqual(self.losses(name), self.losses("reduced"), name)

    def test_four_ranks_of_processes_at_their_own_pace_learn(self):
        for mode in ("async", "ssp"):
            answer = self.train_ranks(4, mode, "sync.method=ps", f"sync.ps_mode={mode}", SMALL, steps=30)
            losses = [one[0] for one in self.losses(mode)]
            self.assertLess(sum(losses[-5:]) / 5, sum(losses[:5]) / 5 - 0.3)
            self.assertIn("pushes by staleness", answer.stderr)

    def test_a_replayed_run_is_the_same(self):
        settings = ("sync.method=ps", "sync.ps_mode=async", SMALL)
        self.train_ranks(3, "recorded", *settings, f"sync.record={self.path('orders')}", "train.global_batch=6")
        self.train_ranks(3, "replayed", *settings, f"sync.replay={self.path('orders')}", "train.global_batch=6")
        self.assertEqual(self.losses("recorded"), self.losses("replayed"))

    def test_other_servers_go_on_from_a_checkpoint(self):
        self.train_ranks(2, "whole", "run.deterministic=true", "checkpoint.every=3")
        self.train_ranks(4, "half", "sync.method=ps", "sync.servers=2", "sync.server_ranks=dedicated", SMALL,
                         "run.deterministic=true", "checkpoint.every=3", steps=3)
        resume = f"checkpoint.resume={self.path('half')}/checkpoints/step-3"
        for name, ranks, settings in (("beside", 2, ()), ("more", 5, ("sync.servers=3", "sync.server_ranks=dedicated"))):
            self.train_ranks(ranks, name, "sync.method=ps", SMALL, "run.deterministic=true", resume, *settings)
            self.assertEqual(self.losses(name), self.losses("whole")[3:], name)


    def test_what_is_pushed_and_pulled_is_in_the_rank_files(self):
        self.train_ranks(3, "bytes", "sync.method=ps", "sync.servers=1", "sync.server_ranks=dedicated", SMALL, steps=3)
        with open(self.path("bytes/summary.json")) as file:
            S = 4 * json.load(file)["parameters"]
        for rank, sent, received in ((0, {"push": S, "pull": 0}, {"push": 0, "pull": S}),
                                     (2, {"push": 0, "pull": 2 * S}, {"push": 2 * S, "pull": 0})):
            rows = {row["algo"]: row for row in self.rank_file("bytes", rank)["comm"] if row["group"] == "ps"}
            for way in ("push", "pull"):
                self.assertEqual(rows[way]["bytes_sent"], 3 * sent[way], (rank, way))
                self.assertEqual(rows[way]["bytes_received"], 3 * received[way], (rank, way))


class Ending(OnRanks):
    def start_long(self, name, ranks, *settings):
        words = ["train", self.run_file(100000), "--nproc", str(ranks), "--run-dir", self.path(name)]
        for setting in ("run.threads=1", "train.eval_every=0", "sync.method=ps", SMALL) + settings:
            words += ["--set", setting]
        process = start(*words)
        self.wait_for_steps(name, process)
        return process

    def wait_for_steps(self, name, process):
        deadline = time.monotonic() + 60
        while self.steps_made(name) < 3:
            self.assertLess(time.monotonic(), deadline, "no step was made")
            self.assertIsNone(process.poll())
            time.sleep(0.05)

    def kept(self, name):
        """The step of the newest checkpoint, 0 while there is none."""
        try:
            names = os.listdir(self.path(name + "/checkpoints"))
        except FileNotFoundError:
            return 0
        return max((int(one.split("-")[1]) for one in names if one.startswith("step-")), default=0)

    def test_a_killed_server_is_named_and_ends_the_run_with_3(self):
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
                self.assertFalse(running(pid), "a rank stayed behind")

    def test_workers_that_nobody_launched_name_the_server_they_lost(self):
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

    # One worker and one server take turns whatever the mode, so that what the server remembers (values and momentum) shows
    # in the bits of what follows also where several workers would mix.
    def test_a_run_whose_server_was_killed_goes_on_from_its_checkpoint(self):
        for mode, ranks in (("sync", 3), ("async", 2), ("ssp", 2)):
            settings = ("sync.servers=1", "sync.server_ranks=dedicated", "run.deterministic=true", f"sync.ps_mode={mode}",
                        "train.schedule=constant", "checkpoint.every=2")
            whole = "whole-" + mode
            process = self.start_long(whole, ranks, *settings)
            self.assertTrue(wait_until(lambda: self.kept(whole) or process.poll() is not None))
            os.kill(ranks_of(process.pid)[ranks - 1], signal.SIGKILL)
            process.communicate(timeout=60)
            kept = self.kept(whole)
            words = ["--nproc", str(ranks)]
            for setting in ("run.threads=1", "train.eval_every=0", "sync.method=ps", SMALL) + settings:
                words += ["--set", setting]
            self.train(*words, "--run-dir", self.path(whole), steps=kept + 4)
            self.train(*words, "--run-dir", self.path("straight-" + mode), steps=kept + 4)
            self.assertEqual(self.losses(whole)[-4:], self.losses("straight-" + mode)[-4:], mode)

    def test_several_workers_go_on_at_their_own_pace_after_their_server_was_killed(self):
        settings = ("sync.servers=1", "sync.server_ranks=dedicated", "sync.ps_mode=async", "checkpoint.every=2",
                    "train.schedule=constant")
        process = self.start_long("apart", 3, *settings)
        self.assertTrue(wait_until(lambda: self.kept("apart") or process.poll() is not None))
        os.kill(ranks_of(process.pid)[2], signal.SIGKILL)
        process.communicate(timeout=60)
        kept = self.kept("apart")
        words = ["--nproc", "3", "--run-dir", self.path("apart")]
        for setting in ("run.threads=1", "train.eval_every=0", "sync.method=ps", SMALL) + settings:
            words += ["--set", setting]
        self.train(*words, steps=kept + 20)
        after = [m for m in self.metrics("apart") if m["step"] > kept][-20:]
        self.assertEqual([m["step"] for m in after], list(range(kept + 1, kept + 21)))
        with open(self.path("apart/summary.json")) as file:
            self.assertEqual(json.load(file)["restarts"], 1)

    def test_a_signal_stops_all_at_one_step_with_a_checkpoint(self):
        for mode in ("sync", "async"):
            name = f"signalled-{mode}"
            process = self.start_long(name, 3, f"sync.ps_mode={mode}", "sync.servers=1", "sync.server_ranks=dedicated")
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 75, errors)
            steps = [int(one.split("-")[1]) for one in os.listdir(self.path(name + "/checkpoints"))
                     if one.startswith("step-")]
            self.assertEqual(steps, [self.metrics(name)[-1]["step"]])


class Refused(OnRanks):
    def test_what_cannot_be_served(self):
        for settings, words in ((("sync.servers=3",), "sync.servers"),
                                (("sync.server_ranks=dedicated",), "dedicated"),
                                (("sync.ps_mode=later",), "sync.ps_mode"),
                                (("sync.ps_mode=async", "sync.update=worker"), "sync.update"),
                                (("sync.ps_mode=async", "sync.aggregate=median"), "sync.aggregate"),
                                (("sync.aggregate=trimmed_mean",), "sync.trim"),
                                (("sync.replay=nowhere",), "sync.replay"),
                                (("parallel.tp=2",), "parallel.tp"),
                                (("sync.offload=host",), "sync.offload")):
            answer = self.train_ranks(2, "refused", "sync.method=ps", *settings, code=2)
            self.assertIn(words, answer.stderr)


if __name__ == "__main__":
    unittest.main()
