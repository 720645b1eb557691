"""Compares lab context (ring attention and Ulysses on real ranks) with the formulas."""
import unittest

from cli_runner import run
from lab_test import lab


class Context(unittest.TestCase):
    def test_work_traffic_and_results_match_formulas(self):
        text, report, words = lab(self, "context", "--nproc", "3", "--seq", "96", "--heads", "6", "--kv-heads", "3",
                                  "--head-dim", "8", "--batch", "2", "--precision", "fp64", "--rounds", "1")
        methods = {row["method"]: row for row in report["methods"]}
        self.assertEqual(list(methods), ["ring, contiguous", "ring, zig-zag", "ulysses"])
        piece = 96 // 6
        for rank in methods["ring, zig-zag"]["ranks"]:
            # Causal pairs per ring step: first two triangles and a square, then two squares in every step.
            self.assertEqual(rank["pairs"], [piece * piece + piece * (piece + 1)] + 2 * [2 * piece * piece])
        for r, rank in enumerate(methods["ring, contiguous"]["ranks"]):
            full = (96 // 3) ** 2
            self.assertEqual(rank["pairs"][1:], [full if step <= r else 0 for step in (1, 2)])
        q = 2 * 2 * (96 // 3) * 3 * 8 * 8
        for name, row in methods.items():
            self.assertLess(row["error"], 1e-12)
            ring = name.startswith("ring")
            forward = 2 * q if ring else 2 * 2 * (96 // 3) * (2 * 6 + 2 * 3) // 3 * 8 * 8
            backward = 2 * q + 3 * q if ring else forward
            self.assertEqual((row["formula_bytes_forward"], row["formula_bytes_backward"]), (forward, backward))
            for rank in row["ranks"]:
                self.assertEqual((rank["bytes_forward"], rank["bytes_backward"]), (forward, backward))
        self.assertEqual(methods["ulysses"]["error"], 0)
        for word in ("ring, zig-zag: 100 % busy", "rank 2"):
            self.assertIn(word, words)
        self.assertIn("(c−1)·q + c·q'", text)

    def test_sums_of_16_bit_types_are_sent_as_fp32(self):
        _, report, _ = lab(self, "context", "--nproc", "2", "--seq", "64", "--heads", "2", "--head-dim", "8",
                           "--precision", "bf16", "--rounds", "1")
        for row in report["methods"]:
            if row["method"].startswith("ring"):
                q = 2 * 32 * 2 * 8 * 2
                self.assertEqual({rank["bytes_backward"] for rank in row["ranks"]}, {q + 2 * 2 * q})

    def test_reports_why_ulysses_is_unavailable(self):
        text, report, _ = lab(self, "context", "--nproc", "2", "--seq", "64", "--heads", "3", "--head-dim", "8",
                              "--bidirectional", "--rounds", "1")
        self.assertIn("Ulysses is not possible: got 3 heads, 2 ranks; expected heads to be a multiple of ranks", text)
        self.assertEqual(len(report["methods"]), 2)
        for row in report["methods"]:
            for rank in row["ranks"]:
                self.assertEqual(rank["pairs"], [32 * 32, 32 * 32])

    def test_rejects_invalid_options(self):
        for arguments, word in ((("--nproc", "1"), "--nproc"), (("--seq", "100"), "96"), (("--kv-heads", "3"), "--kv-heads"),
                                (("--precision", "int3"), "--precision"), (("--rounds", "0"), "--rounds")):
            answer = run("lab", "context", *arguments)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(word, answer.stderr)


if __name__ == "__main__":
    unittest.main()
