"""Starts many jobs at once on one machine. All must succeed and give the loss that their seed gives in a single job; so no
rank has joined another job. Prints its figure; ESPALIER_TEST_LONG=1 or TRIALS=n for the long form."""
import json
import os
import time
import unittest

from fault_test_case import FaultTestCase, trials

SEEDS = 3


class Jobs(FaultTestCase):
    def run_one(self, name, seed, launcher=("train",)):
        return self.begin(name, "--set", f"run.seed={seed}", "--set", "run.deterministic=true", ranks=2, steps=4,
                          launcher=launcher)

    def losses(self, name):
        return [line["loss"] for line in self.metrics(name)]

    def test_concurrent_jobs_do_not_affect_each_other(self):
        alone = []
        for seed in range(SEEDS):
            self.assertEqual(self.wait_for_end(self.run_one(f"alone{seed}", seed)), 0, self.said(f"alone{seed}"))
            alone.append(self.losses(f"alone{seed}"))
        self.assertEqual(len({tuple(one) for one in alone}), SEEDS)
        count, begun = trials(8, 50), time.monotonic()
        launchers = (("train",), ("launch", "--nproc-per-node", "2", "--", "train"))
        jobs = [self.run_one(f"job{k}", k % SEEDS, launchers[k % 2]) for k in range(count)]
        num_failed = num_wrong = 0
        for k, job in enumerate(jobs):
            if self.wait_for_end(job, limit=240) != 0:
                num_failed += 1
                print(self.said(f"job{k}")[-1500:])
                continue
            with open(self.path(f"job{k}/summary.json")) as file:
                world = json.load(file)["world"]
            ranks = sorted(os.listdir(self.path(f"job{k}/ranks")))
            if self.losses(f"job{k}") != alone[k % SEEDS] or world != 2 or ranks != ["rank-0.json", "rank-1.json"]:
                num_wrong += 1
        print(f"{count} jobs of 2 ranks at once: {num_failed} failed, {num_wrong} with wrong losses or ranks, all ended after "
              f"{time.monotonic() - begun:.1f} s")
        self.assertEqual((num_failed, num_wrong), (0, 0))


if __name__ == "__main__":
    unittest.main()
