"""Writes a run folder like that of a long training run on many ranks: python3 large_run.py DIR [STEPS RANKS SPANS_PER_RANK]."""
import json
import math
import pathlib
import random
import sys

CATEGORIES = {"parameter": 900, "gradient": 450, "optimizer": 1800, "activation": 2600, "buffer": 200, "other": 20}


def write_metrics(folder, steps, ranks):
    draw = random.Random(1)
    with open(folder / "metrics.jsonl", "w") as log:
        for step in range(1, steps + 1):
            slow = draw.randrange(ranks)
            line = {"step": step, "loss": 3 + 8 * math.exp(-step / 4000) + 0.1 * draw.random(), "grad_norm": 1 + draw.random(),
                    "lr": 6e-4 * min(1, step / 2000), "tokens": step * 524288, "tokens_per_s": 9.1e5 + 2e4 * draw.random(),
                    "step_ms": 570 + 20 * draw.random(), "mfu": 0.41 + 0.01 * draw.random(), "memory_bytes": 6000000000, "skipped": False,
                    "exposed_ms": 20 * draw.random(), "slowest_rank": slow, "waited_ms": 30 * draw.random(),
                    "layout": "tp 8 × cp 1 × dp 2 × pp 4", "version": 1, "wall_s": 1.8e9 + 0.57 * step, "mono_s": 0.57 * step}
            if step % 500 == 0:
                line["val_loss"] = line["loss"] + 0.05
            log.write(json.dumps(line) + "\n")


def write_ranks(folder, ranks):
    (folder / "ranks").mkdir()
    for rank in range(ranks):
        memory = {name: {"current": mib << 20, "peak": mib << 20} for name, mib in CATEGORIES.items()}
        rows = [{"group": group, "op": op, "algo": "ring", "transport": transport, "calls": 100, "bytes_sent": 1 << 30,
                 "bytes_received": 1 << 30, "messages": 700, "ms": 90.0}
                for group, op, transport in (("tensor", "all_reduce", "shm"), ("copies", "all_reduce", "tcp"), ("pipe_activations_out", "send", "tcp"))]
        (folder / f"ranks/rank-{rank}.json").write_text(json.dumps({
            "rank": rank, "coords": {"tp": rank % 8, "dp": rank // 8 % 2, "pp": rank // 16, "cp": 0, "ep": 0}, "memory": memory,
            "tiers": {"device": {"total": {"current": 0, "peak": sum(CATEGORIES.values()) << 20}}}, "exposed_ms_per_step": 12.5, "comm": rows}))


def write_trace(folder, ranks, spans):
    micro = 16
    with open(folder / "trace.json", "w") as out:
        out.write('{"displayTimeUnit":"ms","otherData":{"dropped_spans":0},"traceEvents":[{"ph":"M","name":"x","pid":0}')
        for rank in range(ranks):
            out.write(f',{{"ph":"M","name":"thread_name","pid":{rank},"tid":0,"args":{{"name":"compute"}}}}')
            at = 1e9 + 100 * (rank // 16)
            for i in range(spans):
                name = ("F%d" % (i // 2 % micro), "B%d" % (i // 2 % micro))[i % 2] if i % (2 * micro + 1) < 2 * micro else "optimizer"
                out.write(f',{{"ph":"X","name":"{name}","cat":"compute","pid":{rank},"tid":0,"ts":{at:.3f},"dur":{90 + i % 7}}}')
                out.write(f',{{"ph":"X","name":"all_reduce","cat":"communication","pid":{rank},"tid":1,"ts":{at + 10:.3f},"dur":50,"args":{{"bytes":4096}}}}')
                at += 110
        out.write("]}")


def main(where, steps=100000, ranks=64, spans=16000):
    folder = pathlib.Path(where)
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text('[run]\nname = "large"\n\n[train]\nsteps = %d\n' % steps)
    write_metrics(folder, steps, ranks)
    write_ranks(folder, ranks)
    write_trace(folder, ranks, spans)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
