"""Compares every field of config.json with `transformers`. A folder with one changed field must give the same logits in
both programs, or espalier must reject it.

    python3 tests/convert/fields_check.py PROBE

Prints one line per field and value, and exits with 1 if any failed. Needs torch and transformers; PROBE is
convert_probe."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

from transformers_check import (LIMIT, LIMIT_S, TRANSFORMERS_MODELS, difference, expected, load, randomised, sequences,
                                write_ids)

KINDS = ["gpt2", "llama-grouped", "bert-masked", "bert-classes"]

# Fields that transformers releases 3 to 5 write or read, in addition to those of the configuration class.
MORE = {
    "is_causal": [True, False], "is_decoder": [True, False], "add_cross_attention": [True, False],
    "is_encoder_decoder": [True, False], "cross_attention_hidden_size": [None, 16], "tie_encoder_decoder": [True, False],
    "pruned_heads": [{}, {"0": [1]}], "chunk_size_feed_forward": [0, 3], "quantization_config": [None, {"bits": 4}],
    "sliding_window": [None, 4], "use_sliding_window": [False, True], "layer_types": [None, ["sliding_attention"] * 3],
    "position_embedding_type": ["absolute", "relative_key"], "auto_map": [None, {"AutoModel": "model.Model"}],
    "partial_rotary_factor": [1.0, 0.5], "num_labels": [2, 5, 7], "problem_type": ["regression", "multi_label_classification"],
    "num_local_experts": [4], "attention_chunk_size": [8], "logit_scale": [0.5], "final_logit_softcapping": [30.0],
    "embedding_multiplier": [2.0], "no_rope_layers": [[0, 1, 0]], "head_dim": [None, 4, 16], "n_ctx": [40, 20],
    "pretraining_tp": [1, 2], "gradient_checkpointing": [True], "output_past": [True], "unsloth_version": ["2026"],
    "task_specific_params": [{"text-generation": {"max_length": 50}}], "max_length": [9], "temperature": [0.5],
    "rope_theta": [500.0], "classifier_dropout": [0.3], "directionality": ["bidi"],
    "rope_scaling": [{"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 4.0},
                     {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "default", "partial_rotary_factor": 0.5}],
    "rope_parameters": [{"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}, {"rope_theta": 300.0}],
}
STRINGS = ["relu", "gelu", "gelu_new", "silu", "tanh", "gelu_fast", "quick_gelu"]


def others(value):
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [value + 1, 2 * value]
    if isinstance(value, float):
        return [2 * value + 0.01]
    if isinstance(value, str):
        return [text for text in STRINGS if text != value] if value in STRINGS else [value + "x"]
    return [1] if value is None else []


def reference_logits(folder, rows):
    try:
        return expected(load(folder), rows)
    except Exception as error:  # transformers rejects the value too
        return f"{type(error).__name__}: {error}".split("\n")[0]


def verdict(probe, folder, ids, rows, field):
    done = subprocess.run([probe, folder, ids, ids + ".npy"], capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode == 4:
        named = field in done.stderr or " has shape [" in done.stderr or "no tensor" in done.stderr or "heads" in done.stderr
        return named, "rejected: " + done.stderr.strip().split("\n")[-1].split("config.json: ")[-1]
    if done.returncode != 0:
        return False, f"exit {done.returncode}: {done.stderr.strip()}"
    want = reference_logits(folder, rows)
    if isinstance(want, str):
        return True, "read; rejected by transformers: " + want
    found = difference(numpy.load(ids + ".npy"), want)
    return found <= LIMIT, f"read; max difference {found:.2e}"


def check(kind, work, probe):
    made = os.path.join(work, kind)
    randomised(TRANSFORMERS_MODELS[kind](), seed=3).save_pretrained(made)
    rows = sequences(7, padded=kind.startswith("bert"))
    ids = os.path.join(work, "ids")
    write_ids(ids, rows)
    config = json.loads(pathlib.Path(made, "config.json").read_text())
    known = transformers.AutoConfig.from_pretrained(made).to_dict()
    values = {key: others(config.get(key, value)) for key, value in known.items()}
    for key, more in MORE.items():
        values.setdefault(key, [])
        values[key] += more
    if kind == "bert-classes":  # its other fields are covered by bert-masked
        values = {key: values.get(key, []) for key in ["id2label", "label2id", "num_labels", "problem_type", "is_decoder"]}
    for key in ["model_type", "transformers_version", "dtype", "torch_dtype"]:
        values.pop(key, None)
    if int(transformers.__version__.split(".")[0]) < 5:
        values.pop("pretraining_tp", None)   # release 4 drops logits if this does not divide the vocabulary
        values.pop("rope_parameters", None)  # release 4 ignores it
    passed = failed = 0
    for key, list_of_values in values.items():
        for value in list_of_values:
            folder = os.path.join(work, "changed")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(made, folder)
            pathlib.Path(folder, "config.json").write_text(json.dumps({**config, key: value}))
            good, text = verdict(probe, folder, ids, rows, key)
            passed, failed = passed + good, failed + (not good)
            print(f"{'PASS' if good else 'FAIL'}  {kind}: {key} = {json.dumps(value)}: {text}", flush=True)
    return passed, failed


def main(probe):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as work:
        counts = [check(kind, work, probe) for kind in KINDS]
    print(f"{sum(passed for passed, _ in counts)} passed, {sum(failed for _, failed in counts)} failed")
    return 1 if any(failed for _, failed in counts) else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
