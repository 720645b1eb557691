"""Compares lab tensor (a tensor-parallel layer, and every partition of a chain of GEMMs, on real ranks) with the formulas."""
import unittest

from cli_runner import run
from lab_test import lab


class Tensor(unittest.TestCase):
    def test_traffic_memory_and_matrix_chain_costs_match_formulas(self):
        text, report, words = lab(self, "tensor", "--nproc", "3", "--batch", "2", "--seq", "24", "--dim", "24", "--heads",
                                  "6", "--vocab", "50", "--widths", "6,12,18,24", "--columns", "4")
        rows = {row["method"]: row for row in report["layers"]}
        stream = 2 * 24 * 24 * 4
        self.assertEqual(rows["tensor"]["calls"], {"all_reduce": 4})
        self.assertEqual(rows["tensor"]["sent_bytes"], 8 * 2 / 3 * stream)
        self.assertEqual(rows["tensor, sequence, gathers kept"]["sent_bytes"], 8 * 2 / 3 * stream)
        self.assertEqual(rows["tensor, sequence"]["sent_bytes"], 10 * 2 / 3 * stream)
        for row in report["layers"]:
            self.assertEqual(row["sent_bytes"], row["formula_bytes"])
            self.assertAlmostEqual(row["loss"], rows["one rank"]["loss"], places=5)
        kept = {name: row["kept_bytes"] / rows["one rank"]["kept_bytes"] for name, row in rows.items()}
        self.assertAlmostEqual(kept["tensor, sequence"], 1 / 3, delta=0.01)
        self.assertGreater(kept["tensor"], 0.4)

        chains = {row["cuts"]: row for row in report["chains"]}
        self.assertEqual(len(chains), 27)
        self.assertEqual(chains["out in in"]["sent_bytes"], 2 * 4 * (18 + 2 * 24) * 8)
        self.assertEqual(chains["out out in"]["sent_bytes"], 2 * 4 * (12 + 2 * 24) * 8)
        for row in report["chains"]:
            self.assertEqual(row["sent_bytes"], row["formula_bytes"], row)
            self.assertLess(row["error"], 1e-12)
        divided = [row for row in report["chains"] if "whole" not in row["cuts"]]
        best = [row for row in report["chains"] if row["best"]]
        self.assertEqual(len(best), 1)
        self.assertEqual(best[0]["sent_bytes"], min(row["sent_bytes"] for row in divided))
        self.assertIn("partition 1", text)
        self.assertIn("(t−1)/t·b·(d₁ + 2d₃)", text)
        self.assertIn("Wqkv", words)

    def test_rejects_invalid_options(self):
        for arguments, word in ((("--nproc", "1"), "--nproc"), (("--heads", "5"), "Try 6"), (("--dim", "97"), "--dim"),
                                (("--widths", "1,2,3"), "expected 4"), (("--widths", "3,4,4,4"), "multiple of --nproc"),
                                (("--nproc", "4", "--batch", "1", "--seq", "6"), "--seq")):
            answer = run("lab", "tensor", *arguments)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(word, answer.stderr)


if __name__ == "__main__":
    unittest.main()
