"""The torch.distributed backend with real processes: every call, DistributedDataParallel against gloo, and exits."""
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

from cli_runner import free_port
from ranks import LIMIT_S, PYTHON, SOURCE, environment, need_torch, run_ranks

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = SOURCE / "examples/python/train_ddp_bert.py"


def setUpModule():
    need_torch()


class Backend(unittest.TestCase):
    def test_every_call_works_on_two_ranks(self):
        for rank, output in enumerate(run_ranks(self, 2, HERE / "backend_ranks.py")):
            self.assertIn(f"rank {rank} good", output)

    def test_collectives_and_messages_work_on_three_ranks_over_tcp(self):
        parts = ("collectives", "messages", "groups")
        for rank, output in enumerate(run_ranks(self, 3, HERE / "backend_ranks.py", *parts, BACKEND_OPTIONS="transport=tcp")):
            self.assertIn(f"rank {rank} good", output)

    def test_strided_tensors_and_ddp_work_on_one_rank(self):
        self.assertIn("rank 0 good", run_ranks(self, 1, HERE / "backend_ranks.py", "strided", "data_parallel")[0])


class Bert(unittest.TestCase):
    """Runs the BERT script with the backends espalier and gloo; only the name of the backend differs."""
    STEPS = ["--epochs", 2, "--items", 8, "--batch_size", 2, "--workers", 0, "--threads", 1]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def results(self, name):
        return [json.loads((self.folder / f"{name}.{rank}").read_text()) for rank in range(2)]

    def train(self, backend):
        port = free_port()
        outputs = run_ranks(self, 2, "-m", "espalier.torch", SCRIPT, "--backend", backend, "--port", port, "--json",
                            self.folder / backend, *self.STEPS)
        self.assertRegex(outputs[0], r"\[Epoch 2/2\] Loss: 0\.\d{4}\n")
        return self.results(backend)

    def test_losses_equal_gloo_bit_for_bit(self):
        ours, theirs = self.train("espalier"), self.train("gloo")
        self.assertEqual([r["backend"] for r in ours + theirs], ["espalier"] * 2 + ["gloo"] * 2)
        for rank in range(2):
            self.assertEqual(len(ours[rank]["losses"]), 4)
            # A sum of two values is rounded once, so the order does not matter.
            self.assertEqual(ours[rank]["losses"], theirs[rank]["losses"])
            self.assertEqual(ours[rank]["checksum"], theirs[rank]["checksum"])
        self.assertEqual(ours[0]["checksum"], ours[1]["checksum"])
        self.assertNotEqual(ours[0]["losses"], ours[1]["losses"])  # each rank trains on different data

    def test_runs_under_espalier_launch(self):
        command = [os.environ["ESPALIER"], "launch", "--nproc-per-node", "2", "--", PYTHON, "-m", "espalier.torch", SCRIPT,
                   "--json", self.folder / "launched", *self.STEPS, "--epochs", 1, "--items", 4]
        answer = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_S, env=environment())
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        self.assertRegex(answer.stdout, r"\[Epoch 1/1\] Loss: 0\.\d{4}\n")
        ours = self.results("launched")
        self.assertEqual(ours[0]["checksum"], ours[1]["checksum"])


class Exits(unittest.TestCase):
    KILLED_RANK = """
import os, sys, torch, torch.distributed as dist, espalier.torch
rank = int(os.environ["RANK"])
dist.init_process_group("espalier", init_method="file://" + os.environ["RENDEZVOUS_FILE"], rank=rank, world_size=2)
dist.barrier()
if rank == 1:
    os.kill(os.getpid(), 9)
work = dist.all_reduce(torch.ones(1000), async_op=True)
try:
    work.wait()
except RuntimeError as error:
    print("reported:", error, work.is_success(), flush=True)
    sys.exit(5)
"""

    def test_reports_killed_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            rendezvous = {"RENDEZVOUS_FILE": os.path.join(folder, "rendezvous"), "WORLD_SIZE": "2"}
            ranks = [subprocess.Popen([PYTHON, "-c", self.KILLED_RANK], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env=environment(**rendezvous, RANK=str(rank))) for rank in range(2)]
            for process in ranks:
                self.addCleanup(process.kill)
            output = ranks[0].communicate(timeout=LIMIT_S)[0]
            ranks[1].communicate(timeout=LIMIT_S)
        self.assertEqual((ranks[0].returncode, ranks[1].returncode), (5, -9), output)
        self.assertRegex(output, r"reported: communication: .*rank 1.* False")

    def test_process_may_exit_with_pending_calls(self):
        """Rank 0 exits with a pending call that rank 1 never makes."""
        leaves = ('import os, torch, torch.distributed as dist, espalier.torch\n'
                  'rank = int(os.environ["RANK"])\n'
                  'dist.init_process_group("espalier", init_method="file://" + os.environ["RENDEZVOUS_FILE"], rank=rank, world_size=2)\n'
                  'dist.barrier()\n'
                  'if rank == 0: dist.all_reduce(torch.ones(9), async_op=True); dist.isend(torch.ones(9), 1)\n'
                  'print("last line", flush=True)\n')
        begun = time.monotonic()
        for output in run_ranks(self, 2, "-c", leaves):
            self.assertIn("last line", output)
        self.assertLess(time.monotonic() - begun, LIMIT_S / 2)  # the default timeout of a group is 30 min

    def test_forked_process_exits_cleanly(self):
        """The child inherits the process group, but not its threads."""
        forks = ('import os, sys, torch, torch.distributed as dist, espalier.torch\n'
                 'rank = int(os.environ["RANK"])\n'
                 'dist.init_process_group("espalier", init_method="file://" + os.environ["RENDEZVOUS_FILE"], rank=rank, world_size=2)\n'
                 'dist.send(torch.ones(9), 1) if rank == 0 else dist.recv(torch.ones(9), 0)\n'
                 'child = os.fork()\n'
                 'if child == 0: sys.exit(7)\n'
                 'print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n'
                 'dist.barrier()\n')
        for output in run_ranks(self, 2, "-c", forks):
            self.assertIn("ended 7", output)

    def test_reports_lost_rank_by_world_rank_without_waiting(self):
        """Covers subgroups, send and receive, and ranks that were lost before they connected. The timeout of the group is 5 min."""
        with tempfile.TemporaryDirectory() as folder:
            rendezvous = {"RENDEZVOUS_FILE": os.path.join(folder, "rendezvous"), "WORLD_SIZE": "3"}
            ranks = [subprocess.Popen([PYTHON, HERE / "backend_ranks.py", "lost"], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, env=environment(**rendezvous, RANK=str(rank)))
                     for rank in range(3)]
            for process in ranks:
                self.addCleanup(process.kill)
            outputs = [process.communicate(timeout=LIMIT_S)[0] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [0, 0, -9], "\n".join(outputs))


if __name__ == "__main__":
    unittest.main()
