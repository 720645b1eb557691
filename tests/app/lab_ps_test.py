"""Tests lab ps: real workers and parameter servers with a straggler, and push schedules in virtual time."""
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree

from cli_runner import run
from findings_check import check_marks


class Ps(unittest.TestCase):
    def test_lab_ps_measures_modes_and_push_schedules(self):
        with tempfile.TemporaryDirectory() as folder:
            answer = run("lab", "ps", "--workers", "3", "--servers", "2", "--step-ms", "2", "--slow", "20",
                         "--seconds", "0.5", "--staleness", "2", "--out", folder)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            with open(os.path.join(folder, "ps.json")) as file:
                report = json.load(file)
            check_marks(self, folder, "ps")
            xml.etree.ElementTree.parse(os.path.join(folder, "ps.svg"))
        self.assertEqual((report["fifo_units"], report["priority_units"]), (10, 8))
        for value, known in zip(report["largest_stable"], (2, 1, 0.618, 0.445)):
            self.assertAlmostEqual(value, known, places=3)
        sync, ssp, free = report["rows"]
        self.assertEqual([sync["mode"], ssp["mode"], free["mode"]], ["sync", "ssp", "async"])
        self.assertLessEqual(max(sync["steps"]) - min(sync["steps"]), 1)
        self.assertLessEqual(max(ssp["steps"]) - min(ssp["steps"]), 2 + 1)
        self.assertIn("staleness", free["note"])
        # Independent of this machine's speed: workers that do not wait take more steps than the slow one.
        self.assertGreater(free["steps"][0], free["steps"][-1])
        for word in ("fifo", "priority", "10 units", "8 units"):
            self.assertIn(word, answer.stdout)

    def test_rejects_invalid_options(self):
        for arguments, word in ((("--workers", "1"), "--workers"), (("--servers", "9"), "--servers"),
                                (("--staleness", "0"), "--staleness"), (("--slow", "0.5"), "--slow")):
            answer = run("lab", "ps", *arguments)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(word, answer.stderr)


if __name__ == "__main__":
    unittest.main()
