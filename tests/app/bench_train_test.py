"""Tests of `espalier bench train` with a tiny model: result rows, baselines, invalid options."""
import json
import os
import stat
import tempfile
import unittest

from cli_runner import run

KEYS = ["library", "model", "device", "precision", "tokens_per_s", "step_ms_median", "tflops", "mfu", "peak_bytes",
        "parameters", "threads", "ranks"]
QUICK = ("bench", "train", "--model", "gpt-tiny", "--steps", "2", "--rounds", "2", "--warmup", "1")


def rows_of(*arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        answer = run(*arguments, "--json", path)
        if answer.returncode != 0:
            return answer, None
        with open(path) as file:
            return answer, json.load(file)


class Json(unittest.TestCase):
    def test_json_rows_are_consistent(self):
        answer, rows = rows_of(*QUICK, "--threads", "1,2")
        self.assertIsNotNone(rows, answer.stderr)
        self.assertEqual([list(row) for row in rows], [KEYS, KEYS])
        self.assertEqual([row["threads"] for row in rows], [1, 2])
        for row in rows:
            self.assertEqual((row["library"], row["model"], row["device"], row["precision"]),
                             ("espalier", "gpt-tiny", "cpu", "fp32"))
            self.assertAlmostEqual(row["tokens_per_s"] * row["step_ms_median"] / 1e3, 8 * 32, places=3)
            self.assertGreater(row["peak_bytes"], 4 * 4 * row["parameters"])
        self.assertIn("square GEMMs", answer.stdout)

    def test_batch_is_divided_over_ranks(self):
        answer, rows = rows_of(*QUICK, "--nproc", "2", "--threads", "1", "--sync", "allreduce,zero1,zero2,zero3")
        self.assertIsNotNone(rows, answer.stderr)
        self.assertEqual([list(row) for row in rows], [KEYS] * 5)
        self.assertEqual([(row["library"], row["ranks"]) for row in rows],
                         [("espalier", 2), ("espalier-zero1", 2), ("espalier-zero2", 2), ("espalier-zero3", 2), ("espalier", 1)])
        for row in rows:
            # Weak scaling: the 1-rank row trains on 4 sequences, the batch of each rank in the 2-rank rows.
            tokens = 4 * row["ranks"] * 32
            self.assertAlmostEqual(row["tokens_per_s"] * row["step_ms_median"] / 1e3, tokens, places=3)
        self.assertIn("Scaling efficiency from 1 to 2 ranks with 4 sequences each: ", answer.stdout)
        self.assertRegex(answer.stdout, r"espalier-zero3: [\d.]+ ms per step exposed communication")
        # The four sync methods must give the same loss.
        losses = [line.split("loss ")[1].split()[0] for line in answer.stdout.splitlines() if ": loss " in line]
        self.assertEqual(len(set(losses[:4])), 1, losses)

    def test_rejects_invalid_options(self):
        for arguments, word in ((("--nproc", "3"), "--batch"), (("--nproc", "2", "--sync", "gossip9"), "zero1"),
                                (("--nproc", "0"), "--nproc"), (("--peers", "jax"), "torch"), (("--model", "gpt-nano"), "gpt-tiny"),
                                (("--threads", "0"), "--threads")):
            answer = run("bench", "train", *arguments)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(word, answer.stderr)


class Baselines(unittest.TestCase):
    def test_torch_row_uses_the_same_model(self):
        answer, rows = rows_of(*QUICK, "--threads", "1", "--peers", "torch")
        if rows is None and "no python3 with the torch module" in answer.stderr:
            self.skipTest("python3-torch is not installed")
        self.assertIsNotNone(rows, answer.stderr)
        self.assertEqual([row["library"] for row in rows], ["espalier", "torch"])
        self.assertEqual(rows[0]["parameters"], rows[1]["parameters"])
        self.assertGreater(rows[1]["peak_bytes"], 0)
        # Both losses begin near ln 256 = 5.55, the loss of uniform predictions.
        losses = [float(line.split("loss ")[1].split()[0]) for line in answer.stdout.splitlines() if ": loss " in line]
        self.assertEqual(len(losses), 2, answer.stdout)
        for loss in losses:
            self.assertLess(abs(loss - 5.55), 0.2)

    def test_torch_ranks_use_distributed_data_parallel(self):
        answer, rows = rows_of(*QUICK, "--nproc", "2", "--threads", "1", "--peers", "torch")
        if rows is None and "no python3 with the torch module" in answer.stderr:
            self.skipTest("python3-torch is not installed")
        self.assertIsNotNone(rows, answer.stderr)
        self.assertEqual([(row["library"], row["ranks"]) for row in rows], [("espalier", 2), ("espalier", 1), ("torch", 2)])
        self.assertEqual(rows[0]["parameters"], rows[2]["parameters"])
        # Memory is summed over both ranks.
        self.assertGreater(rows[2]["peak_bytes"], rows[0]["peak_bytes"])
        self.assertGreater(rows[0]["peak_bytes"], 1.5 * rows[1]["peak_bytes"])

    def test_parses_llm_c_output(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "train_gpt2")
            with open(program, "w") as file:
                file.write("#!/bin/sh\necho '[GPT-2]'\nfor i in 0 1 2 3 4; do\n"
                           "echo \"step $i: train loss 5.0 (took 2000.000000 ms)\"\ndone\n")
            os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
            answer, rows = rows_of("bench", "train", "--model", "gpt2-124m", "--batch", "1", "--seq", "16", "--steps",
                                   "1", "--rounds", "1", "--warmup", "0", "--peers", "llm.c", "--llmc", program)
        self.assertIsNotNone(rows, answer.stderr)
        self.assertEqual([row["library"] for row in rows], ["espalier", "llm.c"])
        self.assertAlmostEqual(rows[1]["step_ms_median"], 2000)
        self.assertAlmostEqual(rows[1]["tokens_per_s"], 8)


if __name__ == "__main__":
    unittest.main()
