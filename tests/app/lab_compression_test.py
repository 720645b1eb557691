"""Tests lab compression: size and error of compressed values; gradient descent that diverges without error feedback and
converges with it."""
import unittest

from cli_runner import run
from lab_decentralised_test import lab


class Compression(unittest.TestCase):
    def test_compressors_meet_theoretical_guarantees(self):
        text, report, words = lab(self, "compression", "--values", "65536", "--steps", "2000", "--draws", "4")
        rows = {row["compressor"]: row for row in report["compressors"]}
        for name, row in rows.items():
            if "omega" in row:
                self.assertLessEqual(row["lost"], 1.05 * row["omega"] + 1e-12, name)
            elif "delta" in row:
                slack = 1e-3 if name.startswith("randomk") else 1e-12  # randomk meets its bound only on average
                self.assertLessEqual(row["lost"], 1 - row["delta"] + slack, name)
        n = 65536
        for name, expected in (("identity", 4 * n), ("fp16", 2 * n), ("int8:256", n + 4 * n // 256), ("sign", n // 8 + 4),
                          ("topk:0.01", 8 * 656), ("randomk:0.01", 4 * 656)):
            self.assertEqual(rows[name]["bytes"], expected, name)
        # The mean over draws approaches x only if the compressor is unbiased.
        self.assertLess(rows["natural"]["bias"], 0.5 * rows["natural"]["lost"])
        self.assertAlmostEqual(rows["sign"]["bias"], rows["sign"]["lost"], delta=1e-9)
        self.assertIn("bias²", text)
        self.assertIn("NEOLITHIC, R = 2", words)

        example = {row["feedback"]: row["error"] for row in report["diverging"]}
        growth = (1 + 0.02 * 11 / 6) ** 2  # growth factor of the squared distance per step
        self.assertAlmostEqual(example["none"][10] / example["none"][0], growth ** 10, delta=1e-6 * growth ** 10)
        for feedback in ("ef", "doublesqueeze", "ef21", "neolithic:2"):
            self.assertLess(example[feedback][-1], 1e-3, feedback)

        runs = {row["name"]: row for row in report["descents"]}
        for name, row in runs.items():
            self.assertAlmostEqual(row["bytes_per_step"], row["formula_bytes"], delta=1e-9, msg=name)
        self.assertLess(runs["EF21"]["error"][-1], 1e-9)
        self.assertGreater(runs["no feedback"]["error"][-1], 3 * runs["EF"]["error"][-1])

    def test_rejects_invalid_options(self):
        for arguments in (("--nproc", "1"), ("--lr", "0"), ("--compress", "topk:65", "--dim", "64"), ("--values", "5")):
            self.assertEqual(run("lab", "compression", *arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
