"""Tests that every lab is listed, runs at small size, draws a picture and prints checked figures. Also tests the page with
all labs."""
import html.parser
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from cli_runner import LAB_LIMIT_S, run
from findings_check import check_marks

# Small sizes. The checked figures are the same at full size.
SMALL = {
    "collectives": [],
    "hosts": ["--bytes", "65536", "--repeats", "1"],
    "exchange": ["--nproc", "2", "--steps", "2"],
    "staleness": ["--seconds", "0.2", "--workers", "2", "--most", "2"],
    "offload": ["--dim", "32", "--layers", "1", "--steps", "5"],
    "zeropp": ["--dim", "64", "--layers", "2", "--steps", "1"],
    "activation": ["--seq", "32", "--dim", "64", "--heads", "4", "--steps", "2", "--layers", "1"],
    "policies": ["--steps", "2"],
    "numbers": [],
}
VOID = {"meta", "br", "img", "link", "hr", "input"}


class HtmlChecker(html.parser.HTMLParser):
    """HTML parser that checks that tags are closed in order and records external resources."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong, self.outside, self.ids, self.anchors = [], [], [], set(), []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and re.match(r"[a-z]+:|//", value or ""):
                self.outside.append(value)
            if name == "href" and (value or "").startswith("#"):
                self.anchors.append(value[1:])
            if name == "id":
                self.ids.add(value)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


class Small(unittest.TestCase):
    def one(self, name):
        with tempfile.TemporaryDirectory() as folder:
            answer = run("lab", name, *SMALL[name], "--out", folder, limit=LAB_LIMIT_S)
            self.assertEqual(answer.returncode, 0, answer.stdout[-2000:] + answer.stderr)
            findings = check_marks(self, folder, name)
            svg = xml.etree.ElementTree.parse(os.path.join(folder, name + ".svg")).getroot()
            self.check_rendering(os.path.join(folder, name + ".svg"))
            with open(os.path.join(folder, name + ".json")) as file:
                report = json.load(file)
        held = [finding["held"] for finding in findings]
        self.assertNotIn("wrong", held)
        self.assertGreater(held.count("agrees"), 2, findings)
        self.assertGreater(len(list(svg.iter("{http://www.w3.org/2000/svg}text"))), 3)
        self.assertIn("✓", answer.stdout)
        return report, {finding["what"]: finding for finding in findings}, answer.stdout

    def check_rendering(self, path):
        """Checks that an SVG renderer draws the picture and that the result is not empty."""
        if not shutil.which("rsvg-convert"):
            return
        drawn = subprocess.run(["rsvg-convert", path], capture_output=True)
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        self.assertGreater(len(drawn.stdout), 3000)

    def test_lab_collectives_gives_correct_results(self):
        report, findings, text = self.one("collectives")
        self.assertEqual([row["correct"] for row in report["operations"]], [True] * 8)
        self.assertEqual(findings["broadcast of 1 MiB along a chain, K = 4, S = 1"]["measured"], "251.658 µs")
        self.assertIn("a0+b0+c0+d0", text)

    def test_lab_hosts_counts_rounds_of_torus(self):
        report, _, text = self.one("hosts")
        rounds = {row["algorithm"]: row["rounds"] for row in report["grids"]}
        self.assertEqual(rounds["torus3d"], 12)
        if not report["measured"]:
            self.assertIn("NOT MEASURED", text)

    def test_lab_exchange_gives_equal_losses(self):
        report, _, _ = self.one("exchange")
        self.assertEqual(report["ways"][0]["losses"], report["ways"][2]["losses"])

    def test_lab_staleness_finds_divergence_thresholds(self):
        report, _, _ = self.one("staleness")
        for row, value in zip(report["thresholds"], (2, 1, 0.618034)):
            self.assertAlmostEqual(row["tried"], value, 3)

    def test_lab_offload_to_file_changes_no_loss(self):
        report, _, _ = self.one("offload")
        losses = {row["place"]: row["losses"] for row in report["places"]}
        self.assertEqual(losses["none"], losses["file"])

    def test_lab_zeropp_reduces_bytes_with_all_parts(self):
        report, _, _ = self.one("zeropp")
        together = report["parts"][-1]
        self.assertLess(together["gathers"] + together["reduction"], 0.8)

    def test_lab_activation_prints_textbook_formula(self):
        report, _, _ = self.one("activation")
        self.assertEqual(report["rows"][0]["formula"], "34sbh + 5as²b")

    def test_lab_policies_gives_equal_step_times(self):
        report, _, _ = self.one("policies")
        self.assertEqual(len({row["step_s"] for row in report["methods"]}), 1)
        self.assertEqual(report["example"]["dp"], 16)

    def test_lab_numbers_counts_gpt3_parameters(self):
        report, findings, _ = self.one("numbers")
        self.assertEqual(findings["GPT-3, all parameters"]["modelled"], "174604259328")


class Page(unittest.TestCase):
    def test_all_writes_self_contained_page(self):
        with tempfile.TemporaryDirectory() as folder:
            answer = run("lab", "--all", "--only", "tensor,speedup", "--out", folder)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertIn("2 labs in", answer.stdout)
            with open(os.path.join(folder, "index.html")) as file:
                page = file.read()
        parser = HtmlChecker()
        parser.feed(page)
        self.assertEqual((parser.wrong, parser.open, parser.outside), ([], [], []))
        self.assertTrue(set(parser.anchors) <= parser.ids, parser.anchors)
        for word in ("prefers-color-scheme:dark", "width=device-width", "Tensor parallelism",
                     "measured here", "<svg", "✓"):
            self.assertIn(word, page)

    def test_every_lab_is_listed_and_has_help(self):
        listed = re.findall(r"^  ([a-z]+) ", run("lab").stdout, re.M)
        for name in ("numbers", "collectives", "allreduce", "hosts", "ddp", "exchange", "ps", "staleness", "zero", "offload",
                     "zeropp", "activation", "speedup", "throughput", "gossip", "local", "compression", "pipeline", "tensor", "context",
                     "moe", "policies"):
            self.assertIn(name, listed)
            self.assertEqual(run("lab", name, "--help").returncode, 0)

    def test_rejects_unwritable_output_before_running(self):
        with tempfile.NamedTemporaryFile() as file:
            for option, path in (("--out", file.name), ("--out", file.name + "/deep"), ("--json", "/nonexistent/x.json")):
                answer = run("lab", "numbers", "--no-run", option, path)
                self.assertEqual((answer.returncode, answer.stdout), (4, ""), answer.stderr)
                self.assertIn(f"{option}: got {path}", answer.stderr)

    def test_rejects_invalid_options(self):
        for arguments, word in ((("--all", "--only", "nothing"), "nothing"), (("--only", "zero"), "--all"),
                                (("--all", "zero"), "--all"), (("hosts", "--bytes", "7"), "--bytes"),
                                (("exchange", "--nproc", "1"), "--nproc"), (("staleness", "--most", "0"), "--most"),
                                (("exchange", "--gbit", "nan"), "--gbit: got nan")):
            answer = run("lab", *arguments)
            self.assertEqual(answer.returncode, 2, arguments)
            self.assertIn(word, answer.stderr)


if __name__ == "__main__":
    unittest.main()
