"""End-to-end tests of espalier plan simulate and espalier plan calibrate."""
import json
import os
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["ESPALIER"]
LARGE = ["--model", "gpt3-175b", "--cluster", "selene", "--gpus", "512", "--tp", "8", "--pp", "8", "--global-batch", "256"]


def run(*words):
    return subprocess.run([PROGRAM, "plan", *words], capture_output=True, text=True, timeout=100)


class Simulation(unittest.TestCase):
    def simulate(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.json")
            done = run("simulate", *LARGE, *words, "--json", out)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out) as file:
                return json.load(file)

    def test_folds_equal_replicas_and_reports_devices(self):
        step = self.simulate()
        self.assertEqual(len(step["devices"]), 8)
        self.assertTrue(all(device["folded"] == 8 for device in step["devices"]))
        for device in step["devices"]:
            self.assertLessEqual(device["compute_s"] + device["waiting_s"], step["step_s"] + 1e-9)
            self.assertGreater(device["peak_bytes"], 1e9)

    def test_simulates_published_schedules(self):
        times = {name: self.simulate("--schedule", name)["step_s"]
                 for name in ("1f1b", "zb-h1", "zb-2p", "zb-v", "v-half", "dualpipe")}
        self.assertLess(times["zb-2p"], times["zb-h1"])
        self.assertLess(times["zb-h1"], times["1f1b"])
        self.assertLess(times["zb-v"], times["1f1b"])
        self.assertLess(times["dualpipe"], times["1f1b"])
        done = run("simulate", *LARGE[:-4], "--pp", "3", "--global-batch", "96", "--schedule", "dualpipe")
        self.assertEqual(done.returncode, 2)

    def test_straggler_slows_the_step(self):
        even, slow = self.simulate(), self.simulate("--straggler", "3:1.5")
        self.assertEqual(len(slow["devices"]), 16)
        self.assertGreater(slow["step_s"], 1.2 * even["step_s"])

    def test_trace_contains_every_action(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            done = run("simulate", *LARGE, "--trace", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path) as file:
                events = json.load(file)["traceEvents"]
        names = {event["name"] for event in events if event["ph"] == "X" and event["cat"] == "compute"}
        self.assertTrue({"F0", "B0", "F31", "B31", "update"} <= names, names)

    def test_goodput_matches_closed_form(self):
        step = self.simulate("--mtbf", "5000", "--days", "2000")
        self.assertAlmostEqual(step["failures"]["goodput"], step["failures"]["expected_goodput"], delta=0.01)

    def test_invalid_options_are_rejected(self):
        for words, message in ((["--straggler", "x"], "17:1.5"), (["--straggler", "512:2"], "0 to 511"),
                            (["--schedule", "zb-x"], "zb-h1")):
            done = run("simulate", *LARGE, *words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr)


class Calibration(unittest.TestCase):
    @unittest.skipUnless(os.environ.get("ESPALIER_TEST_LONG"), "measures the machine for half a minute")
    def test_calibration_file_estimates_a_run(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster, out = os.path.join(folder, "here.toml"), os.path.join(folder, "out.json")
            done = run("calibrate", "--seconds", "2", "--out", cluster)
            self.assertEqual(done.returncode, 0, done.stderr)
            done = run("estimate", "--model", "gpt-6x384", "--cluster", cluster, "--gpus", "2", "--dp", "2",
                       "--global-batch", "8", "--micro-batch", "4", "--precision", "fp32", "--software", "espalier",
                       "--json", out)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out) as file:
                estimate = json.load(file)
        self.assertGreater(estimate["step_s"], 0.001)
        self.assertGreater(estimate["memory_bytes"]["total"], 16 * 10.6e6)

    def test_requires_out_option(self):
        done = run("calibrate")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--out", done.stderr)


if __name__ == "__main__":
    unittest.main()
