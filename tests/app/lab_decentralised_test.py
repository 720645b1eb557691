"""Compares lab gossip, lab local, lab speedup and lab throughput, run on real ranks, with the printed formulas."""
import json
import math
import os
import tempfile
import unittest
import xml.etree.ElementTree

from cli_runner import LAB_LIMIT_S, run
from findings_check import check_marks


def lab(test, name, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        answer = run("lab", name, *arguments, "--out", folder, limit=LAB_LIMIT_S)
        test.assertEqual(answer.returncode, 0, answer.stderr)
        with open(os.path.join(folder, name + ".json")) as file:
            report = json.load(file)
        check_marks(test, folder, name)
        svg = xml.etree.ElementTree.parse(os.path.join(folder, name + ".svg")).getroot()
        return answer.stdout, report, [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]


class DecentralisedSgd(unittest.TestCase):
    def test_gossip_bytes_match_degrees_and_tracking_has_no_bias(self):
        text, report, words = lab(self, "gossip", "--nproc", "6", "--steps", "1000", "--noise", "0", "--dim", "16")
        rows = {row["name"]: row for row in report["rows"]}
        for name, degree in (("full", 5), ("star", 5), ("ring", 2), ("exponential", 3), ("one_peer", 1)):
            self.assertEqual(rows[name]["bytes"], degree * 16 * 8 * 1000, name)
            self.assertEqual(rows[name]["bytes"], rows[name]["formula_bytes"], name)
        self.assertEqual(rows["ring, tracking"]["bytes"], 2 * 16 * 8 * 1999)
        self.assertGreater(rows["ring"]["worst"], 0.01)
        self.assertLess(rows["ring, tracking"]["worst"], 1e-6)
        self.assertLess(rows["full"]["worst"], 1e-6)
        self.assertIn(f"{2 / 3 * (1 - math.cos(2 * math.pi / 6)):.6f}", text)
        self.assertIn("one_peer", words)

    def test_accepts_graph_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("nodes 3\n0 1\n1 2\n")
            file.flush()
            _, report, _ = lab(self, "gossip", "--nproc", "3", "--steps", "10", "--graph", file.name)
            row = [row for row in report["rows"] if row["name"] == file.name][0]
            self.assertEqual(row["bytes"], 2 * 64 * 8 * 10)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("nodes 4\n0 1\n2 3\n")
            file.flush()
            answer = run("lab", "gossip", "--nproc", "4", "--graph", file.name)
            self.assertEqual(answer.returncode, 2)
            self.assertIn("node 2 is not reachable from node 0", answer.stderr)

    def test_local_sgd_bytes_shrink_with_period(self):
        _, report, _ = lab(self, "local", "--nproc", "4", "--steps", "64", "--tau", "1,4,16")
        rows = {row["name"]: row for row in report["rows"]}
        for tau in (4, 16):
            self.assertEqual(rows[f"local, τ = {tau}"]["bytes"] * tau, rows["local, τ = 1"]["bytes"])
        self.assertAlmostEqual(rows["local, τ = 1"]["excess_loss"], rows["parallel SGD"]["excess_loss"], delta=1e-12)
        answer = run("lab", "local", "--tau", "0")
        self.assertEqual(answer.returncode, 2)

    def test_parallel_sgd_speed_up_is_linear(self):
        _, report, _ = lab(self, "speedup")
        self.assertEqual([row["ranks"] for row in report["rows"]], [1, 2, 4, 8])
        for row in report["rows"]:
            self.assertLess(abs(row["settled"] / row["formula"] - 1), 0.05, row)
            self.assertLess(abs(row["speedup"] / row["ranks"] - 1), 0.15, row)

    def test_throughput_falls_with_communication_ratio(self):
        text, report, words = lab(self, "throughput", "--ratios", "0.2,2")
        at = {(row["exchange"], row["ratio"], row["ranks"]): row["modelled"] for row in report["modelled"]}
        seconds = lambda n: 2 * (n - 1) * 1e-5 + 2 * (n - 1) / n * report["bytes"] * 8e-10
        compute = 2 * report["bytes"] * 8e-10
        for n in (2, 8, 64):
            for ratio in (0.2, 2):
                c = compute / ratio
                self.assertAlmostEqual(at["ring all-reduce", ratio, n], n * c / (c + seconds(n)), delta=1e-6)
                self.assertGreater(at["one peer", ratio, n], at["ring all-reduce", ratio, n] if n > 2 else 0)
        self.assertTrue(all(row["measured"] > 0 for row in report["real"]))
        self.assertIn("ring all-reduce, 2", words)
        self.assertEqual(run("lab", "throughput", "--ratios", "0").returncode, 2)


if __name__ == "__main__":
    unittest.main()
