"""End-to-end tests of espalier train on several ranks: bit-identical sync methods, checkpoints of any layout, signals,
rank failure, externally started ranks, and error messages."""
import json
import os
import signal
import socket
import subprocess
import time
import unittest

from cli_runner import ESPALIER, free_port, ranks_of, run, running, start
from train_test import TempFolderTestCase

METHODS = ("allreduce", "zero1", "zero2", "zero3")


class RankTestCase(TempFolderTestCase):
    def train_ranks(self, ranks, name, *settings, steps=6, code=0):
        words = ["--nproc", str(ranks), "--run-dir", self.path(name)]
        for setting in ("run.threads=1",) + settings:
            words += ["--set", setting]
        return self.train(*words, steps=steps, dropout=0.1, code=code)

    def losses(self, name):
        return [(m["loss"], m["grad_norm"]) for m in self.metrics(name)]

    def rank_file(self, name, rank):
        with open(self.path(f"{name}/ranks/rank-{rank}.json")) as file:
            return json.load(file)


class Equivalence(RankTestCase):
    def test_all_methods_are_bit_identical_to_allreduce(self):
        for method in METHODS:
            self.train_ranks(2, method, f"sync.method={method}", "run.deterministic=true")
            self.assertEqual(self.losses(method), self.losses("allreduce"), method)

    def test_bucket_orders_are_bit_identical_to_fixed_order(self):
        self.train_ranks(2, "fixed", "run.deterministic=true")
        settings = {"observed": ["sync.first_bucket_mb=0.01", "sync.bucket_mb=0.05"],
                    "cycle": ["sync.fusion_mb=0.05", "sync.cycle_ms=0.5"]}
        for order, sizes in settings.items():
            self.train_ranks(2, order, f"sync.buckets={order}", *sizes, "run.deterministic=true")
            self.assertEqual(self.losses(order), self.losses("fixed"), order)

    def test_two_ranks_reach_loss_of_one_rank(self):
        self.train_ranks(1, "one")
        self.train_ranks(2, "two")
        for one, two in zip(self.losses("one"), self.losses("two")):
            self.assertAlmostEqual(one[0], two[0], delta=1e-5)

    def test_two_ranks_generate_text_of_one_rank(self):
        texts = []
        for ranks, name in ((1, "alone"), (2, "both")):
            self.train_ranks(ranks, name, steps=120)
            answer = run("generate", "--checkpoint", self.path(name), "--prompt", "the quick ", "--tokens", "9",
                         "--temperature", "0")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            texts.append(answer.stdout)
        self.assertIn("the quick brown fox", texts[0])
        self.assertEqual(texts[0], texts[1])

    def test_offload_is_bit_identical_to_run_without_offload(self):
        self.train_ranks(2, "plain", "sync.method=zero3", "train.precision=bf16")
        for place in ("host", "file"):
            self.train_ranks(2, place, "sync.method=zero3", "train.precision=bf16", f"sync.offload={place}")
            self.assertEqual(self.losses(place), self.losses("plain"), place)

    def test_rank_files_report_bytes_sent_and_memory(self):
        self.train_ranks(2, "z3", "sync.method=zero3", steps=3)
        with open(self.path("z3/summary.json")) as file:
            summary = json.load(file)
        self.assertEqual(summary["world"], 2)
        count = summary["parameters"]
        for rank in (0, 1):
            report = self.rank_file("z3", rank)
            self.assertEqual(report["coords"]["dp"], rank)
            self.assertLess(abs(report["memory"]["parameter"]["peak"] - 4 * count / 2), 4 * 16)
            sent = sum(row["bytes_sent"] for row in report["comm"] if row["op"] == "reduce_scatter")
            self.assertLess(abs(sent - 3 * 4 * count / 2), 3 * 4 * 16)  # odd counts do not halve evenly


class Checkpoints(RankTestCase):
    def test_resumes_in_any_layout(self):
        settings = ("run.deterministic=true",)
        self.train_ranks(1, "whole", "checkpoint.every=3", *settings)
        for method in METHODS:
            self.train_ranks(2, method, f"sync.method={method}", "checkpoint.every=3", steps=3, *settings)
            resume = f"checkpoint.resume={self.path(method)}/checkpoints/step-3"
            self.train_ranks(1, f"{method}-1", resume, *settings)
            self.train_ranks(4, f"{method}-4", "sync.method=zero2", resume, *settings)
            for name in (f"{method}-1", f"{method}-4"):
                self.assertEqual([m["step"] for m in self.metrics(name)], [4, 5, 6])
                self.assertAlmostEqual(self.metrics(name)[-1]["loss"], self.metrics("whole")[-1]["loss"], delta=1e-4)

    def test_resume_equals_uninterrupted_run(self):
        for place in ("none", "host", "file"):
            settings = ("sync.method=zero3", "checkpoint.every=3", "train.precision=bf16", f"sync.offload={place}")
            through, halves = "through-" + place, "halves-" + place
            self.train_ranks(2, through, *settings)
            self.train_ranks(2, halves, *settings, steps=3)
            self.train_ranks(2, halves, *settings)
            self.assertEqual(len(self.losses(halves)), 6)
            self.assertEqual(self.losses(through), self.losses(halves), place)


class RankFailure(RankTestCase):
    def start_long(self, name, *settings):
        words = ["train", self.run_file(100000), "--nproc", "2", "--run-dir", self.path(name)]
        for setting in ("run.threads=1", "train.eval_every=0") + settings:
            words += ["--set", setting]
        process = start(*words)
        deadline = time.monotonic() + 60
        while self.logged_steps(name) < 3:
            self.assertLess(time.monotonic(), deadline, "no step was logged within 60 s")
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        return process

    def test_signal_stops_all_ranks_and_writes_checkpoint(self):
        process = self.start_long("signalled", "sync.method=zero3")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, errors)
        steps = [int(name.split("-")[1]) for name in os.listdir(self.path("signalled/checkpoints"))
                 if name.startswith("step-")]
        self.assertEqual(steps, [self.metrics("signalled")[-1]["step"]])

    def test_names_lost_rank_and_exits_with_3(self):
        process = self.start_long("killed")
        ranks = ranks_of(process.pid)
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, errors)
        self.assertIn("rank 1 killed (SIGKILL)", errors)
        for pid in ranks.values():
            self.assertFalse(running(pid), "a rank process is still running")


class Rendezvous(RankTestCase):
    def join(self, rank, size, port, *words, env=None):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **(env or {}))
        return subprocess.Popen([ESPALIER, "train", self.run_file(4), "--run-dir", self.path("joined"), *words],
                                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_every_rank_reports_mismatched_world_sizes(self):
        port = free_port()
        for process in [self.join(rank, 2 if rank == 0 else 3, port) for rank in range(3)]:
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 2, errors)
            self.assertIn("world size: rank 0 says 2, ranks 1-2 say 3", errors)

    def test_start_timeout_limits_rendezvous(self):
        for words, env in ((["--set", "comm.start_timeout_s=1"], {}),
                           (["--set", "comm.start_timeout_s=600"], {"ESPALIER_START_TIMEOUT_S": "1"})):
            for rank, says in ((0, "1 of 2 ranks joined; missing: 1, within 1 s (comm.start_timeout_s)"),
                               (1, r"no connection to rank 0 at tcp://127.0.0.1:\d+ within 1[.0-9]* s (comm.start_timeout_s)")):
                process = self.join(rank, 2, free_port(), *words, env=env)
                _, errors = process.communicate(timeout=20)  # a wait that ignored the option would take at least 30 s
                self.assertEqual(process.returncode, 3, errors)
                self.assertRegex(errors, says.replace("(", r"\(").replace(")", r"\)"))

    def test_tolerates_master_port_in_use(self):
        with socket.socket() as owner:
            owner.bind(("0.0.0.0", 0))
            owner.listen()
            for process in [self.join(rank, 2, owner.getsockname()[1]) for rank in (0, 1)]:
                _, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(len(self.metrics("joined")), 4)

    def test_connects_externally_started_ranks(self):
        port = free_port()
        secret = self.path("secret")
        with open(secret, "w") as file:
            file.write("0123456789abcdef0123456789abcdef")
        os.chmod(secret, 0o600)
        processes = []
        for rank in (0, 1):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ESPALIER_SECRET_FILE=secret)
            processes.append(subprocess.Popen(
                [ESPALIER, "train", self.run_file(4), "--run-dir", self.path("joined"), "--set", "sync.method=zero1"],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        for process in processes:
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(len(self.metrics("joined")), 4)


class InvalidOptions(RankTestCase):
    def assert_rejected(self, ranks, *settings, says):
        answer = self.train_ranks(ranks, "refused", *settings, code=2)
        for words in says:
            self.assertIn(words, answer.stderr)

    def test_rejects_contradictory_options(self):
        self.assert_rejected(3, says=["train.global_batch = 8", "a multiple of dp = 3"])
        self.assert_rejected(2, "sync.method=zero4", says=["zero4", "zero3"])
        self.assert_rejected(2, "sync.quantise=qwz", says=["sync.quantise", "zero3"])
        self.assert_rejected(2, "sync.delay_update=5", says=["sync.offload"])
        self.assert_rejected(2, "sync.group=2", says=["sync.group", "zero1"])
        self.assert_rejected(2, "sync.offload=disk", says=["disk", "host", "file"])
        self.assert_rejected(2, "train.micro_batch=3", says=["train.micro_batch = 3"])

    def test_reports_mistake_once_for_any_launcher(self):
        mistakes = {"data.train=nosuch": (4, "nosuch"), "train.stpes=4": (2, "stpes"), "comm.all_reduce=rign": (2, "rign"),
                    "comm.transport=foo": (2, "foo"), "checkpoint.resume=nosuch": (4, "nosuch"),
                    "data.tokenizer=nosuch": (4, "nosuch"),
                    "run.device=cuda:77": (2, "cuda"), "model.kv_heads=3": (2, "kv_heads"), "run.dir=/proc/xx": (4, "/proc/xx")}
        for mistake, (code, says) in mistakes.items():
            train = ["train", self.run_file(), "--set", mistake]
            for words in ([*train, "--nproc", "4"], ["launch", "--nproc-per-node", "2", "--", *train]):
                answer = run(*words)
                self.assertEqual(answer.returncode, code, answer.stderr)
                self.assertIn(says, answer.stderr)
                self.assertEqual(answer.stderr.count("espalier: "), 1, answer.stderr)
                self.assertNotIn("rank", answer.stderr.lower().replace("/", " ").split(), answer.stderr)

    def test_reports_small_shared_memory_in_readable_units(self):
        small = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$@\""
        answer = subprocess.run(["unshare", "-m", "sh", "-c", small, "sh", ESPALIER, "train", self.run_file(), "--nproc", "2",
                                 "--set", "comm.transport=shm"], capture_output=True, text=True, timeout=60)
        if "unshare" in answer.stderr or "mount:" in answer.stderr:
            self.skipTest(answer.stderr)
        self.assertEqual(answer.returncode, 4, answer.stderr)
        self.assertRegex(answer.stderr, r"/dev/shm: got 64.0 KiB of free space; expected at least [1-9][0-9.]* [KM]iB\. Mount it with a larger size")

    def test_prints_last_message_of_failed_rank_once(self):
        with open(self.path("broken.jsonl"), "w") as file:
            file.write('{"text": "one"}\n{"text":\n')
        answer = self.train_ranks(4, "broken", f"data.train={self.path('broken.jsonl')}", code=4)
        self.assertEqual(answer.stderr.count("broken.jsonl"), 1, answer.stderr)
        self.assertIn("rank 0 exited with code 4", answer.stderr)

    def test_names_folder_that_cannot_be_created(self):
        answer = self.train_ranks(1, "nowhere", "sync.offload=file", f"sync.offload_dir={self.path('text.txt')}/tier", code=4)
        self.assertIn("sync.offload_dir", answer.stderr)

    def test_out_of_device_memory_names_available_bytes(self):
        answer = run("train", self.run_file(4), "--run-dir", self.path("small"), "--set", "run.device_memory_mb=0.05")
        self.assertEqual(answer.returncode, 2)
        for words in ("run.device_memory_mb = 0.05", "MiB", "set ", "sync.offload"):
            self.assertIn(words, answer.stderr)


if __name__ == "__main__":
    unittest.main()
