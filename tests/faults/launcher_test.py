"""Kills the launcher with SIGKILL at a random moment. None of its ranks may survive. Measures the time until the last rank has ended.
Prints its figure; ESPALIER_TEST_LONG=1 or TRIALS=n for the long form."""
import os
import random
import signal
import time
import unittest

from cli_runner import children, running, wait_until
from fault_test_case import FaultTestCase, spread, trials


class Launcher(FaultTestCase):
    def one(self, name, launcher, draw):
        process = self.begin(name, ranks=4, launcher=launcher)
        self.assertTrue(wait_until(lambda: len(children(process.pid)) == 4), self.said(name))
        if draw.random() < 0.5:
            self.wait_for_steps(name, process, 3)
        time.sleep(draw.uniform(0, 0.3))
        ranks = children(process.pid)
        process.kill()
        killed = time.monotonic()
        process.wait()
        wait_until(lambda: not any(running(pid) for pid in ranks))
        took = time.monotonic() - killed
        alive = sum(running(pid) for pid in ranks)
        for pid in ranks:  # clean up for the next trial
            if running(pid):
                os.kill(pid, signal.SIGKILL)
        return alive, took

    def test_no_rank_outlives_its_launcher(self):
        draw, left, times = random.Random(2), 0, []
        count = trials(2, 50)
        for trial in range(count):
            launcher = ("train",) if trial % 2 == 0 else ("launch", "--nproc-per-node", "4", "--", "train")
            alive, took = self.one(f"run{trial}", launcher, draw)
            left += alive
            times.append(took)
        print(f"launcher killed {count} times: {left} ranks survived; the last of 4 ended after {spread(times)}")
        self.assertEqual(left, 0)


if __name__ == "__main__":
    unittest.main()
