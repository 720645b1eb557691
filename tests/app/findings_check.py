"""Checks the marks in the tables of a lab: a row may have ✓ only if its figures are equal, or if its note names a convention."""
import json
import os
import re

UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "ms": 1e-3, "s": 1,
         "µs": 1e-6, "GB/s": 1e9, "Gb/s": 1e9 / 8, "TFLOP/s": 1e12, "TFLOPS": 1e12, "PFLOP/s": 1e15, "PFLOPS": 1e15,
         "GFLOP/s": 1e9, "%": 0.01, "M$": 1e6, "billion": 1e9, "million": 1e6, "units": 1, "days": 86400, "years": 31536000}
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def figure(text):
    """Parses a cell: (value, half a unit of its last digit); None if the cell has words or a formula."""
    match = re.match(r"[~> $]*(\d[\d,]*)(\.\d+)?(e[-+]\d+)?(?:([KMBT])(?![\w/])| ?([^ ,()]+))?(?=$|[ ,])", text)
    if not match:
        return None
    whole, part, exponent, suffix, unit = match.groups()
    if unit and unit not in UNITS:
        return None
    scale = (SUFFIXES[suffix] if suffix else UNITS[unit] if unit else 1) * float("1" + (exponent or ""))
    decimals = len(part) - 1 if part else 0
    return float(whole.replace(",", "") + (part or "")) * scale, 0.5 * 10**-decimals * scale


def figures_differ(row, first, second):
    """True if both cells are figures and differ by more than the rounding of the first and the row's tolerance."""
    a, b = figure(row[first]), figure(row[second])
    if not a or not b:
        return False
    return abs(a[0] - b[0]) > (1 + 1e-6) * (a[1] + row["tolerance"] * abs(a[0])) + 1e-5 * abs(a[0])


def check_marks(test, folder, name):
    with open(os.path.join(folder, name + ".findings.json")) as file:
        rows = json.load(file)
    test.assertTrue(rows)
    for row in rows:
        pairs = (("lecture", "modelled"), ("lecture", "measured"), ("modelled", "measured"))
        different = [pair for pair in pairs if figures_differ(row, *pair)]
        test.assertEqual("✓" in row["result"], row["held"] in ("agrees", "convention"), row)
        if row["held"] == "agrees":
            test.assertEqual(different, [], row)
        if row["held"] == "convention":
            test.assertIn("convention", row["note"], row)
            test.assertFalse(figures_differ(row, "lecture", "convention"), row)
        if row["held"] == "differs":
            test.assertTrue(row["note"], row)
        if row["held"] == "shown":
            test.assertFalse([pair for pair in different if pair[0] == "lecture"], row)
    return rows
