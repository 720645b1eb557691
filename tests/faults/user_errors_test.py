"""User errors: typos, wrong paths, impossible layouts, invalid files, incomplete environments. For each the first twenty
lines of output must name the cause and a fix; a case lists the required words. Several cases run at a time. Prints how
many were clear."""
import concurrent.futures
import gzip
import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest

from cli_runner import ESPALIER

RUN = {
    "run": {"dir": "{folder}/runs/{name}", "threads": 1},
    "model": {"arch": "gpt", "layers": 2, "heads": 2, "dim": 16, "seq_len": 16},
    "data": {"train": "{folder}/text.txt"},
    "train": {"steps": 2, "global_batch": 8},
    "log": {"tensorboard": False},
}
ENVIRONMENTS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM", "OMPI",
                "PMI", "ESPALIER_")


class Case:
    def __init__(self, what, words, says, *, env=None, code=(2,), text=None, keys=None):
        """`words` are arguments, or None for train with the run file; `keys` change the run file, `text` replaces it."""
        self.what, self.words, self.says, self.env, self.code = what, words, says, env or {}, code
        self.text, self.keys = text, keys or {}


def key(what, name, value, *says, **more):
    return Case(what, None, says, keys={name: value}, **more)


def call(what, words, *says, **more):
    return Case(what, words.split(), says, **more)


TRAIN = "train {run}"
CASES = [
    # typos
    call("a command", "trian {run}", "trian", "train"),
    call("an option", TRAIN + " --nprocs 2", "--nprocs", "--nproc"),
    call("a section", TRAIN, "trian", "train", text='[trian]\nsteps = 3\n'),
    key("a key", "train.stesp", 3, "stesp", "steps"),
    key("another key", "model.layer", 3, "[model]", "layer", "layers"),
    key("a key of another program", "train.learning_rate", 0.1, "learning_rate", "lr"),
    key("a key of another section", "train.layers", 3, "[train]", "layers", "model.layers"),
    call("a key without its section", TRAIN + " --set steps=3", "steps", "section.key"),
    call("a key without a value", TRAIN + " --set train.steps", "train.steps", "="),
    key("an optimizer", "train.optimizer", "adamm", "adamm", "adamw"),
    key("a schedule", "train.schedule", "cosin", "cosin", "cosine"),
    key("a precision", "train.precision", "float16", "float16", "fp16"),
    key("an architecture", "model.arch", "gtp", "gtp", "gpt"),
    key("a preset", "model.preset", "gpt2-124", "gpt2-124", "gpt2-124m"),
    key("a sync method", "sync.method", "all-reduce", "all-reduce", "allreduce"),
    key("a compressor", "sync.compress", "topkk:0.1", "topkk", "topk"),
    key("an order", "data.order", "shuffle", "shuffle", "shuffled"),
    Case("an algorithm", [*TRAIN.split(), "--nproc", "2"], ("rings", "ring"), keys={"comm.all_reduce": "rings"}),
    Case("a transport", [*TRAIN.split(), "--nproc", "2"], ("tpc", "tcp"), keys={"comm.transport": "tpc"}),
    key("a device", "run.device", "gpu", "gpu", "cuda", "cpu"),
    key("an objective", "data.objective", "next-token", "next-token", "next_token"),
    key("an objective of another architecture", "data.objective", "pairs", "pairs", "gpt", "next_token"),
    Case("an architecture of another objective", None, ("next_token", "t5", "span_corruption"),
         keys={"data.objective": "next_token", "model.arch": "t5"}),
    # invalid values
    key("a word instead of a number", "train.steps", "many", "train.steps", "many", "integer"),
    key("a word instead of a rate", "train.lr", "big", "train.lr", "big", "number"),
    key("a number instead of true or false", "log.trace", 1, "log.trace", "true", "false"),
    key("a fractional dimension", "model.dim", 2.5, "model.dim", "2.5", "integer"),
    key("a negative number of steps", "train.steps", -5, "train.steps", "-5", ">= 0"),
    key("a batch of zero", "train.global_batch", 0, "train.global_batch", "0", ">= 1"),
    key("a dropout above 1", "model.dropout", 1.5, "model.dropout", "1.5", "< 1"),
    key("a validation fraction above 1", "data.val_fraction", 2, "data.val_fraction", "2", "< 1"),
    key("a negative number of threads", "run.threads", -1, "run.threads", "-1", "0 (all cores)"),
    # run files
    call("a missing quote", TRAIN, "run.toml:2:10", "string", text='[run]\nname = "x\n'),
    call("a repeated key", TRAIN, "run.toml:3:", "steps", "redefine", text='[train]\nsteps = 1\nsteps = 2\n'),
    call("a missing bracket", TRAIN, "run.toml:1:", "expected ']'", text='[run\nname = "x"\n'),
    call("a missing run file", "train {folder}/nowhere.toml", "nowhere.toml", "No such file", code=(2, 4)),
    call("a folder as a run file", "train {folder}", "{folder}", "Is a directory", code=(2, 4)),
    call("no run file", "train", "run file", "configs/"),
    # files
    key("missing data", "data.train", "{folder}/nothing.txt", "nothing.txt", "data.train", code=(2, 4)),
    key("a glob without matches", "data.train", "{folder}/*.nothing", "*.nothing", "data.train", code=(2, 4)),
    key("no data", "data.train", [], "data.train", "empty list", "a folder or a glob"),
    key("a missing tokenizer", "data.tokenizer", "{folder}/no/tokenizer.json", "no/tokenizer.json", "byte",
        code=(2, 4)),
    key("an invalid tokenizer", "data.tokenizer", "{folder}/text.txt", "text.txt", "tokenizer", code=(2, 4)),
    key("missing weights", "model.init", "{folder}/no-model", "no-model", "checkpoint", "Hugging Face",
        code=(2, 4)),
    call("a missing checkpoint", TRAIN + " --resume {folder}/no-run", "no-run", "no complete checkpoint",
         code=(2, 4)),
    key("a file as the run folder", "run.dir", "{folder}/text.txt", "text.txt", "run.dir", code=(2, 4)),
    key("a run folder that cannot be created", "run.dir", "/proc/espalier", "/proc/espalier", "run.dir", code=(2, 4)),
    key("a checkpoint folder that cannot be created", "checkpoint.dir", "/proc/espalier", "/proc/espalier", "checkpoint", code=(2, 4)),
    Case("a cache folder that cannot be created", None, ("/proc/espalier", "cannot"), code=(2, 4),
         keys={"data.cache": "/proc/espalier", "data.train": "{folder}/good.jsonl"}),
    # data
    key("a too short text", "data.train", "{folder}/short.txt", "seq_len", "short.txt", code=(2, 4)),
    key("an empty text", "data.train", "{folder}/empty.txt", "empty.txt", code=(2, 4)),
    key("jsonl with a broken line", "data.train", "{folder}/broken.jsonl", "broken.jsonl", "line 2", code=(2, 4)),
    key("jsonl with another key", "data.train", "{folder}/other.jsonl", "other.jsonl", "text", "its keys are: body",
        code=(2, 4)),
    key("a truncated compressed file", "data.train", "{folder}/cut.txt.gz", "cut.txt.gz", code=(2, 4)),
    key("ids beyond the vocabulary", "data.train", "{folder}/ids.bin", "ids.bin", "vocab", code=(2, 4)),
    key("a truncated id", "data.train", "{folder}/odd.bin", "odd.bin", "bytes", code=(2, 4)),
    Case("missing labels", None, ("text.txt", "line 1", "JSON"), code=(2, 4),
         keys={"data.objective": "classification", "model.arch": "bert", "model.classes": 2}),
    # layouts
    call("a batch that is not divisible by the ranks", TRAIN + " --nproc 3", "global_batch", "8", "3"),
    call("heads that are not divisible by the ranks", TRAIN + " --nproc 3 --set parallel.tp=3", "tp", "heads", "2"),
    call("a layout for another number of ranks", TRAIN + " --nproc 4 --set parallel.tp=3", "tp", "this run has 4", "divide 4"),
    call("more stages than layers", TRAIN + " --nproc 8 --set parallel.pp=8", "pp", "layers"),
    call("no ranks", TRAIN + " --nproc 0", "--nproc: got 0", ">= 1"),
    key("micro-batches that do not fit", "train.micro_batch", 3, "train.micro_batch", "3", "8"),
    key("a model dimension that is not divisible by the heads", "model.heads", 3, "heads = 3", "dim = 16", "multiple"),
    key("heads that are not divisible by the key-value heads", "model.kv_heads", 3, "kv_heads", "3", "2"),
    call("expert parallelism without experts", TRAIN + " --nproc 2 --set parallel.ep=2", "parallel.ep", "no experts", "that work"),
    key("a missing GPU", "run.device", "cuda", "cuda", "cannot be used"),
    key("a too small memory budget", "run.device_memory_mb", 0.001, "device_memory_mb", "MiB", code=(1, 2)),
    # environments
    call("a rank without a size", TRAIN, "WORLD_SIZE", "RANK", env={"RANK": "0"}),
    call("a rank beyond the size", TRAIN, "rank 5 of 2", "0 to 1",
         env={"RANK": "5", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": "2"}),
    call("a port that is a word", TRAIN, "MASTER_PORT", "http",
         env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": "http"}),
    call("no address", TRAIN, "MASTER_ADDR",
         env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "2"}),
    call("incomplete Slurm variables", TRAIN, "SLURM_NTASKS", env={"SLURM_PROCID": "0"}),
    call("Open MPI without an address", TRAIN, "MASTER_ADDR", "MASTER_PORT",
         env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
              "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}),
    call("hosts without a secret", TRAIN, "ESPALIER_SECRET_FILE", "chmod 600",
         env={"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1",
              "MASTER_PORT": "2"}),
    # launching
    call("a secret that others can read", "launch --secret-file {folder}/open -- true", "open", "chmod 600", code=(4,)),
    call("hosts without an endpoint", "launch --nnodes 2 -- true", "--rdzv-endpoint"),
    call("a dead port", "launch --nnodes 2 --node-rank 1 --rdzv-id x --rdzv-endpoint 127.0.0.1:9 --rdzv-timeout 1 --secret-file "
         "{folder}/secret -- true", "127.0.0.1:9", "Connection refused", code=(3,)),
    call("a port that is taken", "launch --nnodes 2 --node-rank 0 --rdzv-id x --rdzv-endpoint 127.0.0.1:{taken} --rdzv-timeout 1 --secret-file "
         "{folder}/secret -- true", "{taken}", "in use", code=(2, 3)),
    call("nothing to launch", "launch --nproc-per-node 2", "got no command"),
    call("a missing program", "launch -- no-such-program", "no-such-program", code=(1, 126, 127)),
    # existing runs
    call("another model's checkpoint", TRAIN + " --resume {folder}/runs/before --set model.dim=32", "another model",
         "step-2", code=(2, 4)),
    call("another optimizer's checkpoint", TRAIN + " --resume {folder}/runs/before --set train.optimizer=sgd", "adamw",
         "--resume none"),
    call("a damaged checkpoint", TRAIN + " --resume {folder}/runs/damaged", "damaged", "safetensors", code=(4,)),
    call("generate from a missing checkpoint", "generate --checkpoint {folder}/no-run --prompt x", "no-run",
         "run folder", code=(2, 4)),
    call("a negative number of tokens", "generate --checkpoint {folder}/runs/before --prompt x --tokens -1", "--tokens"),
    call("a destination that is not empty", "convert {folder}/runs/before {folder}/runs", "runs", "empty", code=(2, 4)),
    call("an experiment", "lab allreduec", "allreduec", "allreduce"),
]


class UserErrors(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-user-errors-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.write("text.txt", "the quick brown fox jumps over the lazy dog. " * 60)
        self.write("short.txt", "short")
        self.write("empty.txt", "")
        self.write("broken.jsonl", '{"text": "one"}\n{"text": \n')
        self.write("other.jsonl", '{"body": "one"}\n{"body": "two"}\n')
        self.write("good.jsonl", '{"text": "the quick brown fox jumps over the lazy dog"}\n' * 50)
        self.write("open", "0123456789abcdef0123456789abcdef")
        self.write("secret", "0123456789abcdef0123456789abcdef")
        os.chmod(self.path("open"), 0o644)
        os.chmod(self.path("secret"), 0o600)
        with open(self.path("ids.bin"), "wb") as file:
            file.write(b"\xff\xee" * 500)
        with open(self.path("odd.bin"), "wb") as file:
            file.write(b"\x01\x00" * 500 + b"\x01")
        with open(self.path("cut.txt.gz"), "wb") as file:
            file.write(gzip.compress(os.urandom(5000))[:2000])
        self.taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.taken.close)
        self.trained_before()

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)

    def filled(self, text, name):
        return (text.replace("{folder}", self.folder).replace("{name}", name).replace("{run}", self.path(name + "/run.toml"))
                .replace("{taken}", str(self.taken.getsockname()[1])))

    def run_file(self, case, name):
        sections = {section: dict(keys) for section, keys in RUN.items()}
        for path, value in case.keys.items():
            section, _, one = path.partition(".")
            sections.setdefault(section, {})[one] = value
        os.mkdir(self.path(name))
        text = case.text or "".join(
            f"[{section}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items())
            for section, keys in sections.items())
        self.write(name + "/run.toml", self.filled(text, name))

    def run_case(self, case, name):
        self.run_file(case, name)
        words = [self.filled(word, name) for word in case.words or TRAIN.split()]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ENVIRONMENTS)} | case.env
        return subprocess.run([ESPALIER, *words], capture_output=True, text=True, timeout=60, env=environment,
                              cwd=self.folder)

    def trained_before(self):
        before = self.run_case(Case("", None, ()), "before")
        self.assertEqual(before.returncode, 0, before.stderr)
        shutil.copytree(self.path("runs/before"), self.path("runs/damaged"))
        at = self.path("runs/damaged/checkpoints/step-2/model-00001-of-00001.safetensors")
        with open(at, "r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b"xyz")

    def judge(self, item):
        number, case = item
        answer = self.run_case(case, f"case{number}")
        shown = "\n".join((answer.stderr + answer.stdout).splitlines()[:20])
        missing = [word for word in case.says if self.filled(word, f"case{number}") not in shown]
        if answer.returncode not in case.code:
            missing.append(f"exit code {case.code}, not {answer.returncode}")
        return case.what, missing, shown

    def test_errors_name_the_cause_and_a_fix(self):
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("MISTAKES_AT_A_TIME", "4"))) as pool:
            judged = list(pool.map(self.judge, enumerate(CASES)))
        unclear = [(what, missing, shown) for what, missing, shown in judged if missing]
        for what, missing, shown in unclear:
            print(f"unclear: {what}: lacks {missing}\n  " + shown.replace("\n", "\n  "))
        print(f"{len(CASES)} user errors, {len(CASES) - len(unclear)} messages name cause and fix within 20 lines")
        self.assertGreaterEqual(len(CASES), 60)
        self.assertEqual([what for what, _, _ in unclear], [])


if __name__ == "__main__":
    unittest.main()
