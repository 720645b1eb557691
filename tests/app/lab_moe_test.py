"""Tests lab moe: trains a real mixture-of-experts model, and exchanges token rows between real ranks."""
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree

from cli_runner import run
from findings_check import check_marks


class Moe(unittest.TestCase):
    def lab(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            answer = run("lab", "moe", *arguments, "--out", folder)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            with open(os.path.join(folder, "moe.json")) as file:
                report = json.load(file)
            check_marks(self, folder, "moe")
            svg = xml.etree.ElementTree.parse(os.path.join(folder, "moe.svg")).getroot()
            return answer.stdout, report, [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]

    def test_expert_loads_dropped_tokens_and_bytes_match_formulas(self):
        text, report, words = self.lab("--steps", "60", "--ranks", "1,2,3")
        choices = report["tokens"] * report["experts_per_token"]
        for one in report["runs"]:
            for layer in one["layers"]:
                self.assertEqual(sum(layer["loads"]), choices)
                self.assertGreater(layer["balance"], 0.9)
        untrained, alone, balanced = report["runs"]
        self.assertLess(alone["loss"], untrained["loss"] - 1)
        self.assertLess(sum(layer["balance"] for layer in balanced["layers"]),
                        sum(layer["balance"] for layer in alone["layers"]))
        dropped = [row["dropped_without_aux"] for row in report["capacity"]]
        self.assertEqual(dropped, sorted(dropped, reverse=True))
        for row in report["capacity"]:
            # T = 64, k = 2, E = 8: an equal share is 16 rows. An expert cannot keep more than its capacity.
            self.assertEqual(row["capacity"], -int(-row["factor"] * 16 // 1))
            self.assertGreaterEqual(row["dropped_without_aux"], row["choices"] - row["choices"] * row["factor"])
        for row in report["traffic"]:
            self.assertEqual(row["all_to_alls"], 0 if row["ranks"] == 1 else 4)
            if row["balanced"] and report["experts"] % row["ranks"] == 0:
                self.assertEqual(row["counted_bytes"], row["formula_bytes"])
            self.assertLessEqual(abs(row["counted_bytes"] - row["formula_bytes"]), 0.25 * row["formula_bytes"])
        for word in ("equal shares", "dropped", "formula", "2 ranks, balanced"):
            self.assertIn(word, words)
            self.assertIn(word, text)

    def test_rejects_invalid_options(self):
        for arguments, word in ((("--experts", "0"), "--experts"), (("--top-k", "9"), "--top-k"),
                                (("--ranks", "9"), "--ranks"), (("--dim", "6"), "--dim")):
            answer = run("lab", "moe", *arguments)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(word, answer.stderr)


if __name__ == "__main__":
    unittest.main()
