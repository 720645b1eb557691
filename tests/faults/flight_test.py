"""Flight recorder: one timeline of all ranks after one of them was killed."""
import os
import signal
import unittest

from cli_runner import run
from fault_test_case import FaultTestCase


class Timeline(FaultTestCase):
    def test_timeline_contains_killed_rank(self):
        process = self.begin("run", ranks=3)
        self.wait_for_steps("run", process, 10)
        os.kill(self.pids(process)[1], signal.SIGKILL)
        self.assertEqual(self.wait_for_end(process), 3)
        self.assertIn("espalier flight", self.said("run"))
        self.assertIn("rank 1 killed (SIGKILL)", self.said("run"))
        answer = run("flight", self.path("run"), "--last", "60")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        for rank in range(3):
            self.assertIn(f"rank {rank} wrote ", answer.stdout)
        lines = [line for line in answer.stdout.split("\n") if " s  rank " in line]
        self.assertEqual(len(lines), 60)
        times = [float(line.split(" s ")[0]) for line in lines]
        self.assertEqual(times, sorted(times))
        records = self.flight("run")
        self.assertEqual(sorted(records), [0, 1, 2])
        steps = [r["sequence"] for r in records[1] if r["kind"] == "step"]
        self.assertGreaterEqual(max(steps), 10)  # the records of the killed rank are complete

    def test_records_of_previous_start_are_kept(self):
        self.assertEqual(self.wait_for_end(self.begin("run", ranks=2, steps=3)), 0)
        self.assertEqual(self.wait_for_end(self.begin("run", ranks=2, steps=6)), 0)
        answer = run("flight", self.path("run"), "--previous", "--last", "0")
        self.assertIn("step #3", answer.stdout)
        self.assertNotIn("step #4", answer.stdout)
        self.assertIn("step #6", run("flight", self.path("run"), "--last", "0").stdout)

    def test_error_when_folder_has_no_records(self):
        answer = run("flight", self.path("."))
        self.assertEqual(answer.returncode, 4)
        self.assertIn("rank-K.flight", answer.stderr)


if __name__ == "__main__":
    unittest.main()
