"""Tests lab zero, lab ddp and lab pipeline with small models on real ranks."""
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree

from cli_runner import run
from findings_check import check_marks


def lab(test, name, *arguments):
    """Runs a lab; returns its printed text, its JSON report, and the texts in its picture."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "new", "deep")
        answer = run("lab", name, *arguments, "--out", out)
        test.assertEqual(answer.returncode, 0, answer.stderr)
        with open(os.path.join(out, name + ".json")) as file:
            report = json.load(file)
        with open(os.path.join(out, name + ".txt")) as file:
            test.assertTrue(answer.stdout.startswith(file.read()))
        check_marks(test, out, name)
        svg = xml.etree.ElementTree.parse(os.path.join(out, name + ".svg")).getroot()
        return answer.stdout, report, [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]


class Zero(unittest.TestCase):
    def test_memory_matches_formulas(self):
        text, report, words = lab(self, "zero", "--model", "gpt-tiny", "--nproc", "4")
        rows = [row for row in report["rows"] if row["tier"] == "device"]
        self.assertEqual([row["formula"] for row in rows[:4]], ["16Φ", "4Φ + 12Φ/N", "2Φ + 14Φ/N", "16Φ/N"])
        count = report["parameters"]
        expected = [16 * count, 4 * count + 12 * count / 4, 2 * count + 14 * count / 4, 16 * count / 4]
        for row, bytes in zip(rows, expected):
            self.assertEqual(row["formula_bytes"], bytes)
            self.assertLess(abs(row["measured_bytes"] / bytes - 1), 0.01, row)
            self.assertEqual(len(row["ranks"]), 4)
            states = [sum(rank[state]["current"] for state in ("parameter", "gradient", "optimizer")) for rank in row["ranks"]]
            self.assertEqual(max(states), row["measured_bytes"])
        # Over all ranks together, a sharded state is stored once.
        for row, state, each in ((rows[1], "optimizer", 12), (rows[2], "gradient", 2), (rows[3], "parameter", 2)):
            total = sum(rank[state]["current"] for rank in row["ranks"])
            self.assertLess(abs(total / (each * count) - 1), 0.01, row)
        # Offload keeps the weights on the device; all other states are on the host.
        offload = {row["tier"]: row for row in report["rows"] if row["stage"] == "offload"}
        self.assertEqual({tier: row["formula"] for tier, row in offload.items()}, {"device": "2Φ", "host": "14Φ/N"})
        for row in offload.values():
            self.assertLess(abs(row["difference"]), 0.01, row)
        for word in ("stage 0", "stage 3", "offload, host", "optimizer", "formula"):
            self.assertIn(word, words)
            self.assertIn(word, text)

    def test_fp32_memory_matches_formulas(self):
        text, report, _ = lab(self, "zero", "--model", "gpt-tiny", "--nproc", "2", "--precision", "fp32")
        rows = [row for row in report["rows"] if row["tier"] == "device"]
        self.assertEqual([row["formula"] for row in rows[:4]], ["16Φ", "8Φ + 8Φ/N", "4Φ + 12Φ/N", "16Φ/N"])
        for row in report["rows"]:
            self.assertLess(abs(row["difference"]), 0.01, row)

    def test_rejects_invalid_options(self):
        for arguments, word in ((("--nproc", "0"), "--nproc"), (("--model", "gpt-nano"), "gpt-tiny"),
                                (("--precision", "int3"), "--precision"), (("--steps", "0"), "--steps")):
            answer = run("lab", "zero", *arguments)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(word, answer.stderr)


class Ddp(unittest.TestCase):
    def test_reports_scaling_waits_and_stragglers(self):
        text, report, words = lab(self, "ddp", "--model", "gpt-tiny", "--ranks", "4,2", "--steps", "2", "--rounds", "2")
        rows = report["rows"]
        self.assertEqual([row["ranks"] for row in rows], [1, 2, 4])  # the run with 1 rank is always included
        self.assertEqual((rows[0]["efficiency"], rows[0]["exposed_ms"]), (1, 0))
        for row in rows:
            self.assertAlmostEqual(row["tokens_per_s"] * row["step_ms_median"] / 1e3, 32 * row["ranks"], places=3)
            at_once = min(row["ranks"], report["cores"])
            self.assertAlmostEqual(row["efficiency"] * row["ranks"], row["efficiency_of_cores"] * at_once, places=6)
        for row in rows[1:]:
            self.assertGreater(row["exposed_ms"], 0)
            self.assertIn(row["slowest_rank"], range(row["ranks"]))
            self.assertIn(f"{row['ranks']} ranks: rank ", text)
        self.assertEqual("ranks share cores" in text, report["cores"] < 4)
        for word in ("1 rank", "4 ranks", "waiting for communication"):
            self.assertIn(word, words)

    def test_rejects_invalid_options(self):
        for arguments, word in ((("--ranks", "0"), "--ranks"), (("--sync", "zero9"), "zero3"), (("--batch", "0"), "--batch")):
            answer = run("lab", "ddp", *arguments)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(word, answer.stderr)


class Pipeline(unittest.TestCase):
    NAMES = ["none", "gpipe", "1f1b", "interleaved", "zb-h1"]

    def drawn(self, *arguments):
        return lab(self, "pipeline", "--unit-ms", "1", *arguments)

    def test_schedules_match_theory(self):
        text, report, words = self.drawn("--stages", "3", "--micro-batches", "6", "--chunks", "2")
        rows = {row["schedule"]: row for row in report["rows"]}
        self.assertEqual(list(rows), self.NAMES)
        expected = {"none": 6 * 3 * 3, "gpipe": 8 * 3, "1f1b": 8 * 3, "interleaved": 6 * 3 + 3, "zb-h1": 6 * 3 + 2}
        for name, row in rows.items():
            self.assertEqual((row["formula"], row["virtual"]["makespan"]), (expected[name], expected[name]))
            self.assertAlmostEqual(row["virtual"]["bubble_of_ideal"], expected[name] / 18 - 1)
            self.assertAlmostEqual(row["virtual"]["bubble_of_total"], 1 - 18 / expected[name])
            self.assertTrue(any(word.startswith(name) and "executed" in word for word in words), words)
            self.assertIn(f"\n{name}", text)
        self.assertEqual([rows[name]["live"] for name in self.NAMES],
                         [[1, 1, 1], [6, 6, 6], [3, 2, 1], [8, 6, 4], [3, 3, 3]])

    def test_ranks_execute_schedules(self):
        _, report, _ = self.drawn("--stages", "3", "--micro-batches", "3", "--chunks", "2")
        for row in report["rows"]:
            stages = row["executed"]["stages"]
            for planned, done in zip(row["virtual"]["stages"], stages):
                self.assertEqual([a[0] for a in planned["actions"]], [a[0] for a in done["actions"]])
            self.assertEqual(row["live"], row["live_executed"])
            self.assertTrue(row["same_gradients"])
            crossings = 2 * row["micro_batches"] * (row["stages"] * row["chunks"] - 1)
            self.assertEqual(row["boundary_bytes"], crossings * row["message_bytes"])
            # No action is shorter than its nominal time, and inputs are finished before they are used.
            self.assertGreaterEqual(row["executed"]["makespan"], row["virtual"]["makespan"] * report["unit_ms"])
            begun = [{name: begin for name, begin, _ in stage["actions"]} for stage in stages]
            ended = [{name: end for name, _, end in stage["actions"]} for stage in stages]
            for stage in range(row["stages"] - 1):
                for name in begun[stage]:
                    first, second = (stage, stage + 1) if name[0] == "F" else (stage + 1, stage)
                    if name[0] != "W":
                        self.assertGreater(begun[second][name], ended[first][name], (row["schedule"], name))

    def test_skips_interleaved_when_micro_batches_do_not_divide(self):
        text, report, _ = self.drawn("--stages", "2", "--micro-batches", "1")
        self.assertEqual([row["schedule"] for row in report["rows"]], [name for name in self.NAMES if name != "interleaved"])
        self.assertIn("Left out: interleaved", text)

    def test_accepts_schedule_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "own.pipeline")
            with open(path, "w") as file:
                file.write("espalier pipeline 1\nstages 2\nmicro_batches 2\n"
                           "stage 0: F0 F1 B0 W0 B1 W1\nstage 1: F0 B0 F1 B1 W0 W1\n")
            _, report, _ = self.drawn("--stages", "2", "--micro-batches", "2", "--schedule", path)
            own = report["rows"][-1]
            self.assertEqual((own["schedule"], own["same_gradients"]), (path, True))
            self.assertEqual(own["virtual"]["makespan"], 7)
            with open(path, "a") as file:
                file.write("stage 1: F7\n")
            answer = run("lab", "pipeline", "--schedule", path)
            self.assertEqual(answer.returncode, 4, answer.stderr)
            self.assertIn("own.pipeline, line 6", answer.stderr)

    def test_rejects_invalid_options(self):
        for arguments, word in ((("--stages", "0"), "--stages"), (("--micro-batches", "99"), "--micro-batches"),
                                (("--unit-ms", "0"), "--unit-ms"), (("--chunks", "99"), "--chunks")):
            answer = run("lab", "pipeline", *arguments)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(word, answer.stderr)


if __name__ == "__main__":
    unittest.main()
