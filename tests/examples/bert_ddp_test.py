"""Runs the example train_ddp_bert_ring like a user: checks its output, and that replicas stay equal. ESPALIER_TEST_LONG=1
runs all epochs."""
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "app"))
from cli_runner import free_port  # noqa: E402

PROGRAM = os.environ.get("TRAIN_DDP_BERT_RING", "build/bin/train_ddp_bert_ring")
LONG = bool(os.environ.get("ESPALIER_TEST_LONG"))
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(**more):
    return {k: v for k, v in os.environ.items() if k not in LAUNCHERS} | more


def start(*arguments, **more):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment(**more))


def finish(process, limit):
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError("still running after %d s:\n%s" % (limit, err)) from None
    return process.returncode, out, err


class Bert(unittest.TestCase):
    def run_all(self, num_ranks, *arguments, limit=120):
        code, out, err = finish(start("--world_size", num_ranks, "--spawn", "--port", free_port(), *arguments), limit)
        self.assertEqual(code, 0, err)
        return out, err

    def losses(self, out, epochs):
        lines = out.splitlines()
        self.assertEqual(len(lines), epochs, out)
        for i, line in enumerate(lines):
            self.assertRegex(line, r"^\[Epoch %d/%d\] Loss: \d\.\d{4}$" % (i + 1, epochs))
        return [float(line.split()[-1]) for line in lines]


class Counts(Bert):
    def test_two_ranks_take_157_steps_per_epoch(self):
        out, err = self.run_all(2, "--epochs", 0)
        self.assertEqual(out, "")
        self.assertIn("10,477,058 parameters, 10000 items, 157 steps per epoch", err)

    def test_two_machines_of_four_ranks_take_40_steps_per_epoch(self):
        _, err = self.run_all(8, "--epochs", 0, "--nodes", 2)
        self.assertIn("10,477,058 parameters, 10000 items, 40 steps per epoch", err)
        ranks = re.findall(r"^rank (\d) of 8: process (\d+) on (node-\d)$", err, re.M)
        self.assertEqual(sorted(int(r) for r, _, _ in ranks), list(range(8)))
        self.assertEqual(len({process for _, process, _ in ranks}), 8)
        self.assertEqual(sorted(node for _, _, node in ranks), ["node-0"] * 4 + ["node-1"] * 4)


class Training(Bert):
    def test_starts_ranks_one_by_one(self):
        port = free_port()
        common = ["--world_size", 2, "--port", port, "--items", 60, "--batch_size", 8, "--epochs", 3, "--check"]
        ranks = [start("--rank", r, *common) for r in range(2)]
        results = [finish(p, 120) for p in ranks]
        for code, _, err in results:
            self.assertEqual(code, 0, err)
        losses = self.losses(results[0][1], 3)
        self.assertEqual(losses, sorted(losses, reverse=True))
        self.assertEqual(results[1][1], "")  # only rank 0 prints losses
        self.assertIn("4 steps per epoch", results[0][2])

    def test_reads_launcher_environment(self):
        port = free_port()
        ranks = [start("--items", 8, "--batch_size", 4, "--epochs", 1, "--check", RANK=str(r), WORLD_SIZE="2",
                       LOCAL_RANK=str(r), LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                 for r in range(2)]
        results = [finish(p, 120) for p in ranks]
        for code, _, err in results:
            self.assertEqual(code, 0, err)
        self.losses(results[0][1], 1)

    def test_two_nodes_with_partial_batch_equal_one_rank(self):
        steps = ["--items", 40, "--epochs", 1, "--dropout", 0, "--check"]
        several, _ = self.run_all(4, "--nodes", 2, "--batch_size", 4, *steps)
        one, _ = self.run_all(1, "--batch_size", 16, *steps)
        self.assertAlmostEqual(self.losses(several, 1)[0], self.losses(one, 1)[0], delta=1.01e-4)  # one unit in the last printed digit

    @unittest.skipUnless(LONG, "takes minutes; ESPALIER_TEST_LONG=1 runs it")
    def test_full_run_reaches_loss_below_0_05(self):
        out, _ = self.run_all(2, "--check", limit=3000)
        losses = self.losses(out, 3)
        for before, after in zip(losses, losses[1:]):
            self.assertLess(after, before)
        self.assertLess(losses[-1], 0.05)


class Errors(Bert):
    def assert_rejected(self, code, word, *arguments, limit=60):
        got, out, err = finish(start(*arguments), limit)
        self.assertEqual(got, code, err)
        self.assertIn(word, err)
        self.assertEqual(out, "")

    def test_rejects_invalid_arguments(self):
        self.assert_rejected(2, "--spawn", "--world_size", 2)
        self.assert_rejected(2, "--rank: got 2; expected 0 to 1", "--world_size", 2, "--rank", 2)
        self.assert_rejected(2, "--world_size: got 3", "--world_size", 3, "--nodes", 2, "--spawn")
        self.assert_rejected(2, "ESPALIER_SECRET_FILE", "--world_size", 2, "--rank", 0, "--master_addr", "192.0.2.1")

    def test_rank_failure_ends_all_ranks(self):
        process = start("--world_size", 3, "--spawn", "--port", free_port(), "--epochs", 1000)
        self.addCleanup(process.kill)
        victim, ready = None, False
        for line in process.stderr:
            if found := re.match(r"rank 2 of 3: process (\d+)$", line.strip()):
                victim = int(found[1])
            ready = ready or "parameters" in line
            if victim and ready:
                break
        self.assertTrue(victim and ready)
        os.kill(victim, 9)
        code, _, err = finish(process, 60)
        self.assertEqual(code, 3, err)
        self.assertIn("rank 2", err)


if __name__ == "__main__":
    unittest.main()
