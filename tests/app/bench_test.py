"""Tests of `espalier bench comm` and `espalier lab allreduce` with small sizes."""
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree

from cli_runner import ESPALIER, run
from findings_check import check_marks

KEYS = ["library", "op", "algo", "transport", "ranks", "bytes", "time_us_median", "time_us_p99", "algbw_gbs", "busbw_gbs",
        "bytes_sent_per_rank", "rounds", "correct"]


def rows_of(test, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "rows.json")
        answer = run("bench", "comm", *arguments, "--json", file)
        test.assertEqual(answer.returncode, 0, answer.stderr)
        with open(file) as rows:
            return json.load(rows)


class Table(unittest.TestCase):
    def test_prints_nccl_tests_format(self):
        answer = run("bench", "comm", "--nproc", "2", "-b", "1K", "-e", "4K", "-f", "2", "-n", "3", "-w", "1")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        lines = answer.stdout.splitlines()
        for word in ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "%link"]:
            self.assertTrue(any(line.startswith("#") and word in line for line in lines), word)
        data = [line.split() for line in lines if line and not line.startswith("#")]
        self.assertEqual([row[:5] for row in data], [["1024", "256", "float", "sum", "-1"], ["2048", "512", "float", "sum", "-1"],
                                                     ["4096", "1024", "float", "sum", "-1"]])
        self.assertTrue(all(row[8] == "0" and row[12] == "0" for row in data), data)
        self.assertIn("# Out of bounds values : 0 OK", lines)
        self.assertTrue(any(line.startswith("# Avg bus bandwidth    : ") for line in lines))

    def test_verifies_every_operation_type_and_reduction(self):
        answer = run("bench", "comm", "all", "--nproc", "3", "-b", "3K", "-n", "1", "-w", "0", "-m", "1", "-d", "all", "-o", "all")
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        self.assertIn("# Out of bounds values : 0 OK", answer.stdout)

    def test_verifies_registered_buffers_and_tcp(self):
        for more in (["--registered"], ["--transport", "tcp"]):
            answer = run("bench", "comm", "all", "--nproc", "2", "-b", "64K", "-n", "2", "-w", "1", "-m", "2", *more)
            self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
            self.assertIn("# Out of bounds values : 0 OK", answer.stdout)


class Json(unittest.TestCase):
    def test_json_has_documented_keys(self):
        rows = rows_of(self, "all_reduce", "broadcast", "--nproc", "2", "-b", "8K", "-n", "2", "-w", "1")
        self.assertEqual([row["op"] for row in rows], ["all_reduce", "broadcast"])
        for row in rows:
            self.assertEqual(list(row), KEYS)
            self.assertEqual((row["library"], row["ranks"], row["bytes"], row["correct"]), ("espalier", 2, 8192, True))
            self.assertGreater(row["time_us_median"], 0)

    def test_traffic_equals_algorithm_formula(self):
        row, = rows_of(self, "--algo", "ring", "--nproc", "4", "-b", "64K", "-n", "2", "-w", "1", "-m", "3")
        self.assertEqual((row["algo"], row["rounds"], row["bytes_sent_per_rank"]), ("ring", 6, 65536 * 3 // 2))
        row, = rows_of(self, "--algo", "recursive_doubling", "--nproc", "4", "-b", "64K", "-n", "2", "-w", "1")
        self.assertEqual((row["rounds"], row["bytes_sent_per_rank"]), (2, 2 * 65536))

    def test_csv_has_the_same_columns(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "rows.csv")
            self.assertEqual(run("bench", "comm", "--nproc", "2", "-b", "1K", "-n", "1", "--csv", file).returncode, 0)
            with open(file) as rows:
                self.assertEqual(rows.readline().strip().split(","), KEYS)


class Startup(unittest.TestCase):
    def test_starts_sixty_four_ranks(self):
        answer = run("bench", "comm", "--startup", "--nproc", "64")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        print(answer.stdout)
        self.assertRegex(answer.stdout, r"^64 ranks.*first barrier passed [\d.]+\n")


class Baselines(unittest.TestCase):
    def test_compares_libraries_in_one_run(self):
        built = [name for name in ("openmpi", "mpich", "gloo")
                 if os.path.exists(os.path.join(os.path.dirname(ESPALIER), "espalier-peer-" + name))]
        if not built:
            self.skipTest("no baseline program was built (apt-get install libopenmpi-dev libmpich-dev libgloo-dev)")
        with tempfile.TemporaryDirectory() as folder:
            json_file, markdown = os.path.join(folder, "rows.json"), os.path.join(folder, "table.md")
            answer = run("bench", "comm", "all_reduce", "reduce_scatter", "--nproc", "2", "-b", "4K", "--rounds", "1", "--peers",
                         ",".join(built), "--json", json_file, "--markdown", markdown)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertIn("core-to-core latency", answer.stdout)
            self.assertIn("best baseline / espalier", answer.stdout)
            with open(json_file) as file:
                rows = json.load(file)
            self.assertEqual({row["library"] for row in rows}, {"espalier", *built}, answer.stderr)
            self.assertTrue(all(list(row) == KEYS and row["correct"] for row in rows), rows)
            with open(markdown) as file:
                self.assertIn("| size | espalier |", file.read())


class Lab(unittest.TestCase):
    def test_allreduce_reports_models_measurements_and_frames(self):
        with tempfile.TemporaryDirectory() as folder:
            answer = run("lab", "allreduce", "--nproc", "4", "-b", "1K", "-e", "64K", "--rounds", "1", "--out", folder)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            for text in ["2(N−1)α + 2(N−1)/N·Sβ", "the slide printed", "Crossovers measured", "Crossovers modelled",
                         "frame 9: all-gather done", "Every frame is as the algorithm says."]:
                self.assertIn(text, answer.stdout)
            check_marks(self, folder, "allreduce")
            with open(os.path.join(folder, "allreduce.json")) as file:
                report = json.load(file)
            self.assertEqual(len(report["frames"]), 9)
            self.assertTrue(report["frames_correct"])
            after_one = report["frames"][2]["cells"]
            self.assertEqual((after_one[1][0], after_one[2][1], after_one[3][2], after_one[0][3]),
                             ("a0+b0", "b1+c1", "c2+d2", "a3+d3"))
            finished = report["frames"][7]["cells"]
            self.assertEqual([[c for c, cell in enumerate(row) if cell] for row in finished], [[1], [2], [3], [0]])
            svg = xml.etree.ElementTree.parse(os.path.join(folder, "allreduce.svg")).getroot()
            texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
            for name in ["ring", "halving_doubling", "recursive_doubling"]:
                self.assertIn(name, texts)


if __name__ == "__main__":
    unittest.main()
