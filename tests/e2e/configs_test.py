"""Every ready run file, from the repository's root, for two steps: it reads, it trains, its loss is a number."""
import glob
import json
import math
import os
import tempfile
import tomllib
import unittest

from driving import run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHORT = ["train.steps=2", "train.warmup=0", "train.global_batch=2", "train.micro_batch=0", "train.eval_every=0",
         "train.eval_batches=1", "train.max_minutes=0", "checkpoint.every=0", "checkpoint.resume=none",
         "log.every=1"]
# What would take long or write gigabytes is made narrow; its keys are read all the same.
NARROW = {"gpt2_124m": ["model.layers=1", "model.dim=96", "model.seq_len=64"],
          "long_context": ["model.seq_len=2048"]}
PARAMETERS = {"bert_lecture": 10_477_058}


def overrides(path):
    name = os.path.splitext(os.path.basename(path))[0]
    with open(path, "rb") as file:
        data = tomllib.load(file).get("data", {})
    sets = SHORT + NARROW.get(name, [])
    for key in ("train", "val"):
        paths = data.get(key, [])
        paths = [paths] if isinstance(paths, str) else paths
        if any(not os.path.exists(os.path.join(ROOT, p)) for p in paths):
            sets = sets + [f"data.{key}=README.md"]
    return name, sets


class Configs(unittest.TestCase):
    def setUp(self):
        before = os.getcwd()
        os.chdir(ROOT)
        self.addCleanup(os.chdir, before)

    def test_all_of_them_train(self):
        paths = sorted(glob.glob("configs/*.toml"))
        self.assertGreaterEqual(len(paths), 7)
        for path in paths:
            with self.subTest(path), tempfile.TemporaryDirectory(prefix="espalier-configs-") as folder:
                self.two_steps(path, folder)

    def two_steps(self, path, folder):
        name, sets = overrides(path)
        arguments = [word for one in sets for word in ("--set", one)]
        answer = run("train", path, "--run-dir", folder + "/run", *arguments)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        with open(folder + "/run/metrics.jsonl") as file:
            losses = [json.loads(line)["loss"] for line in file]
        self.assertEqual(len(losses), 2)
        for loss in losses:
            self.assertTrue(math.isfinite(loss) and loss > 0, losses)
        with open(folder + "/run/summary.json") as file:
            parameters = json.load(file)["parameters"]
        self.assertEqual(parameters, PARAMETERS.get(name, parameters))


if __name__ == "__main__":
    unittest.main()
