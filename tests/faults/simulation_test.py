"""Store, membership and recovery on a virtual clock and network, under seeded faults: how many schedules keep every rule of
tests/faults/simulation/truth.h, and whether a rule left out on purpose is found. SCHEDULES=n and SEED=s, or
ESPALIER_TEST_LONG=1 for 100,000 of each; a schedule that breaks a rule prints its seed, and
`control_simulation --seed S --schedules 1 --told` plays it again."""
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


class Jobs(unittest.TestCase):
    def test_every_rule_is_kept(self):
        answer = simulate("--schedules", how_many(3000), "--seed", SEED)
        print(answer.stdout)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        # A simulation in which nothing goes wrong, or nothing is mended, shows nothing.
        self.assertRegex(answer.stdout, r"[1-9]\d* killed")
        self.assertRegex(answer.stdout, r"of which [1-9]\d* in place")

    def test_a_seed_plays_the_same_again(self):
        once, again = (simulate("--schedules", "20", "--seed", "77", "--told") for _ in range(2))
        self.assertEqual((once.stdout, once.stderr), (again.stdout, again.stderr))
        self.assertIn("rank", once.stderr)


class Stores(unittest.TestCase):
    def test_single_keys_are_linearizable(self):
        answer = simulate("--store", "--schedules", how_many(1000), "--seed", SEED)
        print(answer.stdout)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)


class Mutants(unittest.TestCase):
    def check_found(self, rule, says):
        answer = simulate("--break", rule, "--schedules", "5000", "--seed", SEED)
        self.assertEqual(answer.returncode, 1, f"{rule} was not found: {answer.stdout}")
        self.assertIn(says, answer.stdout)
        seed = re.match(r"seed (\d+): (.*)", answer.stdout)
        print(f"{rule}: found after {int(seed[1]) - int(SEED)} schedules: {seed[2]}")
        again = simulate("--break", rule, "--schedules", "1", "--seed", seed[1])
        self.assertIn(seed[2], again.stdout, "the seed must lead there again")

    def test_a_hub_that_hears_late_of_a_closed_connection(self):
        self.check_found("slow_to_bury", "one table")

    def test_going_on_from_the_oldest_state(self):
        self.check_found("oldest_replica", "little is lost")

    def test_replacing_a_rank_that_lives(self):
        self.check_found("forget_to_kill", "one world")

    def test_a_store_that_answers_with_the_value_before(self):
        self.check_found("stale_reads", "no order")


if __name__ == "__main__":
    unittest.main()
