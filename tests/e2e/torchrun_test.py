"""End-to-end tests of espalier and the C library under torchrun (its store occupies MASTER_PORT): default
rendezvous, --standalone, c10d, two hosts, and a restart. Skipped with a message if tools/install_packages could not install
PyTorch."""
import json
import os
import pathlib
import signal
import subprocess
import unittest

from cli_runner import ESPALIER, LIMIT_S, free_port, ranks_of, wait_until
from train_test import TempFolderTestCase

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TORCHRUN = SOURCE / "build-python-torch/bin/torchrun"
WAYS = {"default": [], "standalone": ["--standalone"], "c10d": ["--rdzv-backend", "c10d"],
        "static": ["--rdzv-backend", "static", "--master-addr", "127.0.0.1"]}
SETTINGS = ["--set", "run.threads=1", "--set", "comm.all_reduce=ring"]


class TorchrunTestCase(TempFolderTestCase):
    def setUp(self):
        if subprocess.run([TORCHRUN, "--help"], capture_output=True).returncode != 0 if TORCHRUN.exists() else True:
            self.skipTest("build-python-torch has no torchrun: tools/install_packages test installs it if possible")
        super().setUp()

    def start(self, flags, *words):
        environment = dict(os.environ, ESPALIER_LIBRARY=os.environ["ESPALIER_LIBRARY"], PYTHONPATH=str(SOURCE / "python"),
                           OMP_NUM_THREADS="1")
        return subprocess.Popen([TORCHRUN, *flags, "--no_python", *map(str, words)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=environment)

    def run_all(self, *started):
        outputs = [process.communicate(timeout=LIMIT_S) for process in started]
        for process, (output, errors) in zip(started, outputs):
            self.assertEqual(process.returncode, 0, output + errors)
        return "".join(output for output, _ in outputs)

    def flags(self, way):
        port = ["--master-port", str(free_port())] if way == "static" else []
        return [*WAYS[way], *port, "--nproc_per_node", "2"]

    def losses(self, name):
        return [row["loss"] for row in self.metrics(name)]


class Trainer(TorchrunTestCase):
    def test_loss_equals_espalier_launch(self):
        self.train("--nproc", "2", "--run-dir", self.path("ours"), *SETTINGS, steps=6)
        for way in WAYS:
            self.run_all(self.start(self.flags(way), ESPALIER, "train", self.run_file(6), "--run-dir", self.path(way),
                                    *SETTINGS))
            self.assertEqual(self.losses(way), self.losses("ours"), way)
            self.assert_same_checkpoint(6, "ours", way)

    def test_two_hosts_reach_loss_of_one_host(self):
        self.train("--nproc", "2", "--run-dir", self.path("ours"), *SETTINGS, steps=6)
        port = str(free_port())
        for way, options in (("static", ["--master-addr", "127.0.0.1", "--master-port", port]),
                             ("c10d", ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "7",
                                      "--local-addr", "127.0.0.1"])):
            hosts = [self.start([*options, "--nnodes", "2", "--node-rank", str(host), "--nproc_per_node", "1"], ESPALIER,
                                "train", self.run_file(6), "--run-dir", self.path("two-" + way), *SETTINGS)
                     for host in range(2)]
            self.run_all(*hosts)
            self.assertEqual(self.losses("two-" + way), self.losses("ours"), way)

    def test_job_resumes_when_torchrun_restarts_it(self):
        steps, settings = 600, [*SETTINGS, "--set", "checkpoint.every=20"]
        self.train("--nproc", "2", "--run-dir", self.path("ours"), *settings, steps=steps)
        job = self.start(["--max-restarts", "1", *self.flags("default")], ESPALIER, "train", self.run_file(steps),
                         "--run-dir", self.path("killed"), *settings)
        self.addCleanup(job.kill)
        self.assertTrue(wait_until(lambda: self.logged_steps("killed") > 40 or job.poll() is not None))
        os.kill(ranks_of(job.pid)[1], signal.SIGKILL)
        self.run_all(job)
        with open(self.path("killed/events.jsonl")) as file:
            recovered = [event for event in map(json.loads, file) if event["event"] == "recovered"]
        self.assertEqual([event["rung"] for event in recovered], ["disk"])
        self.assertGreaterEqual(recovered[0]["step"], 20)
        self.assertEqual(self.losses("killed"), self.losses("ours"))
        self.assert_same_checkpoint(steps, "ours", "killed")

    def test_concurrent_jobs_do_not_interfere(self):
        jobs = {name: self.start(["--standalone", "--nproc_per_node", "2"], ESPALIER, "train", self.run_file(6),
                                 "--run-dir", self.path(name), *SETTINGS, "--set", f"run.seed={seed}")
                for seed, name in enumerate(("one", "other"))}
        self.run_all(*jobs.values())
        for seed, name in enumerate(jobs):
            self.train("--nproc", "2", "--run-dir", self.path("ours-" + name), *SETTINGS, "--set", f"run.seed={seed}", steps=6)
            self.assertEqual(self.losses(name), self.losses("ours-" + name))


class CollectivesLibrary(TorchrunTestCase):
    def test_c_and_python_sum_over_ranks(self):
        c, python = [os.environ["ESPALIER_C_EXAMPLE"]], ["/usr/bin/python3", SOURCE / "examples/python/all_reduce.py"]
        for way in WAYS:
            for program in (c, python) if way != "static" else (c,):
                output = self.run_all(self.start(self.flags(way), *program))
                for rank in (0, 1):
                    self.assertIn(f"rank {rank} of 2", output, way)


if __name__ == "__main__":
    unittest.main()
