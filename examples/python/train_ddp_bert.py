"""Trains a small BERT with DistributedDataParallel; --backend selects the backend of torch.distributed.

    espalier launch --nproc-per-node 2 -- python3 -m espalier.torch train_ddp_bert.py --backend espalier
    torchrun --standalone --nproc_per_node=2 train_ddp_bert.py --backend gloo
    for r in 0 1; do python3 -m espalier.torch train_ddp_bert.py --world_size 2 --rank $r & done; wait

Every process has a replica of the model and a part of every batch; DistributedDataParallel averages the gradients.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class RandomSentences(Dataset):
    """Random token ids, all of class 0, so no download is needed."""

    def __init__(self, seq_len, vocab, length):
        self.seq_len, self.vocab, self.length = seq_len, vocab, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocab, (self.seq_len,))
        return ids, torch.ones(self.seq_len, dtype=torch.long), torch.tensor(0)


class SmallBert(nn.Module):
    def __init__(self, vocab=30522, hidden=256, heads=4, seq_len=128, layers=2, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.position = nn.Parameter(torch.zeros(1, seq_len, hidden))
        layer = nn.TransformerEncoderLayer(hidden, heads, dim_feedforward=2048, dropout=dropout)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.classifier = nn.Linear(hidden, 2)

    def forward(self, ids, mask):
        x = self.embedding(ids) + self.position
        x = self.encoder(x.transpose(0, 1), src_key_padding_mask=(mask == 0)).transpose(0, 1)
        return self.classifier(x[:, 0, :])


def train(args):
    dist.init_process_group(args.backend, init_method=f"tcp://{args.address}:{args.port}", rank=args.rank,
                            world_size=args.world_size)
    torch.manual_seed(args.seed)  # the same on all ranks; DDP also broadcasts the parameters of rank 0
    model = nn.parallel.DistributedDataParallel(SmallBert(dropout=args.dropout))
    torch.manual_seed(args.seed + 1 + args.rank)

    dataset = RandomSentences(seq_len=128, vocab=30522, length=args.items)
    sampler = DistributedSampler(dataset, num_replicas=args.world_size, rank=args.rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    losses, times = [], []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        first = len(losses)
        for ids, mask, label in loader:
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = criterion(model(ids, mask), label)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            times.append(time.perf_counter() - begin)
        if args.rank == 0:
            print(f"[Epoch {epoch + 1}/{args.epochs}] Loss: {sum(losses[first:]) / len(losses[first:]):.4f}", flush=True)

    if args.json:
        checksum = sum(p.detach().double().abs().sum().item() for p in model.parameters())
        with open(f"{args.json}.{args.rank}", "w") as out:
            json.dump({"backend": dist.get_backend(), "losses": losses, "step_s": times, "checksum": checksum}, out)
    dist.destroy_process_group()


def main():
    environment = os.environ
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world_size", type=int, default=environment.get("WORLD_SIZE"))
    parser.add_argument("--rank", type=int, default=environment.get("RANK"))
    parser.add_argument("--address", default=environment.get("MASTER_ADDR", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=environment.get("MASTER_PORT", "12355"))
    parser.add_argument("--backend", default="espalier")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32, help="items per process and step")
    parser.add_argument("--items", type=int, default=10000)
    parser.add_argument("--workers", type=int, default=2, help="data loader processes")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=0, help="threads per process; 0: the default of torch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write losses and times to FILE.RANK")
    args = parser.parse_args()
    if args.world_size is None or args.rank is None:
        parser.error("--world_size, --rank: not given; expected both, or a launcher that sets WORLD_SIZE and RANK")
    if args.threads:
        torch.set_num_threads(args.threads)
    train(args)


if __name__ == "__main__":
    main()
