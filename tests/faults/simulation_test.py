"""Key-value store, membership and recovery on a simulated clock and network, under seeded faults. All schedules must keep
the invariants of tests/faults/simulation/invariant_checker.h, and injected bugs must be detected. SCHEDULES=n and
SEED=s, or ESPALIER_TEST_LONG=1 for 100,000 of each. A schedule that violates an invariant prints its seed;
`control_simulation --seed S --schedules 1 --log` replays it."""
import os
import re
import subprocess
import unittest

PROGRAM = os.environ.get("CONTROL_SIMULATION", "build/bin/control_simulation")
LONG = os.environ.get("ESPALIER_TEST_LONG") == "1"
SEED = os.environ.get("SEED", "1")


def simulate(*words):
    return subprocess.run([PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=3600)


def how_many(short):
    return os.environ.get("SCHEDULES", "100000" if LONG else str(short))


class SimulatedJobs(unittest.TestCase):
    def test_jobs_keep_every_invariant(self):
        answer = simulate("--schedules", how_many(3000), "--seed", SEED)
        print(answer.stdout)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        # The schedules must contain faults and recoveries.
        self.assertRegex(answer.stdout, r"[1-9]\d* killed")
        self.assertRegex(answer.stdout, r"of which [1-9]\d* in place")

    def test_seed_replays_the_same_schedule(self):
        once, again = (simulate("--schedules", "20", "--seed", "77", "--log") for _ in range(2))
        self.assertEqual((once.stdout, once.stderr), (again.stdout, again.stderr))
        self.assertIn("rank", once.stderr)


class SimulatedStores(unittest.TestCase):
    def test_single_keys_are_linearizable(self):
        answer = simulate("--store", "--schedules", how_many(1000), "--seed", SEED)
        print(answer.stdout)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)


class InjectedBugs(unittest.TestCase):
    def check_found(self, bug, says):
        answer = simulate("--break", bug, "--schedules", "5000", "--seed", SEED)
        self.assertEqual(answer.returncode, 1, f"the injected bug {bug} was not detected: {answer.stdout}")
        self.assertIn(says, answer.stdout)
        seed = re.match(r"seed (\d+): (.*)", answer.stdout)
        print(f"{bug}: detected after {int(seed[1]) - int(SEED)} schedules: {seed[2]}")
        again = simulate("--break", bug, "--schedules", "1", "--seed", seed[1])
        self.assertIn(seed[2], again.stdout, "the seed must reproduce the violation")

    def test_late_report_of_closed_connection_is_detected(self):
        self.check_found("late_disconnect", "consistent table")

    def test_resuming_from_oldest_replica_is_detected(self):
        self.check_found("oldest_replica", "bounded loss")

    def test_replacing_a_live_rank_is_detected(self):
        self.check_found("forget_to_kill", "single world")

    def test_stale_reads_are_detected(self):
        self.check_found("stale_reads", "no order")


if __name__ == "__main__":
    unittest.main()
