"""lab compression: codes of the promised length and quality, descent that diverges without feedback and not with it."""
import unittest

from driving import run
from lab_copies_test import lab


class Compression(unittest.TestCase):
    def test_codes_keep_what_theory_promises(self):
        text, report, words = lab(self, "compression", "--values", "65536", "--steps", "2000", "--draws", "4")
        rows = {row["compressor"]: row for row in report["compressors"]}
        for name, row in rows.items():
            if "omega" in row:
                self.assertLessEqual(row["lost"], 1.05 * row["omega"] + 1e-12, name)
            elif "delta" in row:
                slack = 1e-3 if name.startswith("randomk") else 1e-12  # of chance: it holds for the mean
                self.assertLessEqual(row["lost"], 1 - row["delta"] + slack, name)
        n = 65536
        for name, due in (("identity", 4 * n), ("fp16", 2 * n), ("int8:256", n + 4 * n // 256), ("sign", n // 8 + 4),
                          ("topk:0.01", 8 * 656), ("randomk:0.01", 4 * 656)):
            self.assertEqual(rows[name]["bytes"], due, name)
        # A mean over draws comes nearer to x where the compressor is unbiased, and nowhere else.
        self.assertLess(rows["natural"]["bias"], 0.5 * rows["natural"]["lost"])
        self.assertAlmostEqual(rows["sign"]["bias"], rows["sign"]["lost"], delta=1e-9)
        self.assertIn("bias²", text)
        self.assertIn("NEOLITHIC, R = 2", words)

        example = {row["feedback"]: row["error"] for row in report["diverging"]}
        growth = (1 + 0.02 * 11 / 6) ** 2  # of the squared distance, in every step
        self.assertAlmostEqual(example["none"][10] / example["none"][0], growth ** 10, delta=1e-6 * growth ** 10)
        for feedback in ("ef", "doublesqueeze", "ef21", "neolithic:2"):
            self.assertLess(example[feedback][-1], 1e-3, feedback)

        runs = {row["name"]: row for row in report["descents"]}
        for name, row in runs.items():
            self.assertAlmostEqual(row["bytes_per_step"], row["formula_bytes"], delta=1e-9, msg=name)
        self.assertLess(runs["EF21"]["error"][-1], 1e-9)
        self.assertGreater(runs["no feedback"]["error"][-1], 3 * runs["EF"]["error"][-1])

    def test_what_cannot_be_is_refused(self):
        for arguments in (("--nproc", "1"), ("--lr", "0"), ("--compress", "topk:65", "--dim", "64"), ("--values", "5")):
            self.assertEqual(run("lab", "compression", *arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
