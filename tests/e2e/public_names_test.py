"""End-to-end tests of the public names: every value of every choice key of the interface is accepted by the binary."""
import json
import unittest

from cli_runner import run
from ranks_test import RankTestCase

ALL_REDUCES = ("ring ring_bidirectional naive direct recursive_doubling halving_doubling tree double_tree hierarchical "
               "torus2d mesh2d torus3d").split()
COMPRESSORS = "fp16 bf16 int8 int4 random qsgd natural sign onebit topk randomk threshold powersgd".split()
# Unbiased compressors. The others are biased and need error feedback.
UNBIASED = {"random", "qsgd", "natural", "randomk"}
FEEDBACKS = "none ef doublesqueeze ef21 neolithic onebit_adam".split()
TOPOLOGIES = "full star ring grid exponential one_peer".split()
METHODS = "allreduce zero1 zero2 zero3 ps gossip local diloco".split()
KEYS = {
    "run": "name dir seed device deterministic",
    "model": "preset arch layers heads kv_heads dim ffn vocab seq_len dropout activation norm positions tie_embeddings",
    "model.moe": "experts top_k capacity_factor aux_loss",
    "data": "train val tokenizer objective",
    "train": "steps global_batch micro_batch optimizer lr schedule warmup weight_decay clip precision recompute",
    "parallel": "dp tp pp cp ep sequence context schedule interleave layout",
    "sync": "method bucket_mb offload compress feedback",
    "comm": "transport all_reduce nodes timeout_s",
    "checkpoint": "dir every keep async resume",
    "log": "every tensorboard trace",
}


class PublicNames(RankTestCase):
    def train_each(self, ranks, settings):
        for setting in settings:
            words = setting.split()
            with self.subTest(setting):
                self.train_ranks(ranks, "".join(c if c.isalnum() else "-" for c in setting), *words, steps=2)

    def test_accepts_every_all_reduce_algorithm(self):
        self.train_each(4, (f"comm.all_reduce={name}" for name in ALL_REDUCES))

    def test_accepts_every_compressor_and_error_feedback(self):
        self.train_each(2, (f"sync.compress={name} sync.feedback={'none' if name in UNBIASED else 'ef'}" for name in COMPRESSORS))
        self.train_each(2, (f"sync.feedback={name} sync.compress={'int8' if name == 'none' else 'sign'}" for name in FEEDBACKS))

    def test_accepts_every_method_and_topology(self):
        self.train_each(2, (f"sync.method={name}" for name in METHODS))
        self.train_each(4, (f"sync.method=gossip sync.topology={name}" for name in TOPOLOGIES))
        self.train_each(2, (f"sync.method=zero1 sync.offload={name}" for name in ("none", "host", "file")))
        self.train_each(2, (f"sync.method=ps sync.ps_mode={name}" for name in ("sync", "async", "ssp")))

    def test_accepts_every_layout(self):
        self.train_each(2, (f"parallel.pp=2 train.micro_batch=1 model.layers=4 parallel.schedule={name}"
                            for name in ("gpipe", "1f1b", "zb-h1", "interleaved parallel.interleave=2")))
        self.train_each(2, (f"parallel.cp=2 parallel.context={name}" for name in ("ring", "ulysses")))
        self.train_each(2, (f"train.recompute={name}" for name in ("none", "selective", "full")))
        self.train_each(2, ("model.moe.experts=4 model.moe.top_k=1 model.moe.capacity_factor=1.5 model.moe.aux_loss=0.1 "
                            "parallel.ep=2",))

    def test_run_writes_every_public_key_and_file(self):
        self.train_ranks(2, "run", "log.trace=true", steps=2)
        with open(self.path("run/run.toml")) as file:
            sections = {part.split("]")[0]: part for part in file.read().split("\n[")}
        sections["run"] = sections.pop("[run")
        for section, keys in KEYS.items():
            for key in keys.split():
                self.assertIn(f"\n{key} = ", sections[section], section)
        for name in ("step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_ms", "mfu",
                     "bytes_sent_per_step", "max_bytes_sent_per_step"):
            self.assertIn(name, self.metrics("run")[-1])
        with open(self.path("run/summary.json")) as file:
            summary = json.load(file)
        for name in ("world", "steps", "final_loss", "parameters", "tokens_per_s", "peak_bytes", "restarts", "wall_s", "val_loss",
                     "method", "compress", "feedback", "bytes_sent_per_step", "max_bytes_sent_per_step", "hardware"):
            self.assertIn(name, summary)
        answer = run("compare", self.path("run"), "--json", "-")
        self.assertEqual(set(json.loads(answer.stdout)[0]), {"run", "method", "compressor", "layout", "steps", "val_loss", "tokens_per_s",
                                                             "bytes_sent_per_step", "peak_bytes", "wall_s"})
        rank = self.rank_file("run", 1)
        self.assertEqual(rank["rank"], 1)
        self.assertEqual(set(rank["coords"]), {"dp", "tp", "pp", "cp", "ep"})
        for category in ("parameter", "gradient", "optimizer", "activation", "buffer", "other"):
            self.assertLessEqual({"current", "peak"}, set(rank["memory"][category]))
        for name in ("group", "op", "algo", "transport", "calls", "bytes_sent", "bytes_received", "messages", "ms"):
            self.assertIn(name, rank["comm"][0])
        with open(self.path("run/trace.json")) as file:
            json.load(file)


if __name__ == "__main__":
    unittest.main()
