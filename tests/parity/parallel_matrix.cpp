#include "tests/parity/parallel_matrix.h"

namespace esp::parity {
namespace {

// kEven: a sequence length that is divisible by the number of sequence-parallel ranks. kOne: micro-batch size 1, which
// divides the batch of every rank and gives interleaved schedules a multiple of pp micro-batches.
const Overrides kEven = {"model.seq_len=12"};
const Overrides kOne = {"train.micro_batch=1"};

const Overrides kExperts = {"model.moe.experts=12", "model.moe.every=2", "model.moe.capacity_factor=1.5"};
const Overrides kExpertsOne = {"model.moe.experts=4", "model.moe.shared=9", "train.micro_batch=1"};

const Overrides kClass = {
    "data.objective=classification", "data.train=PAIRS", "data.text_key=source", "data.label_key=target",
    "data.val_fraction=0",           "model.seq_len=12", "model.pooler=true",    "model.post_norm=true"};

const LayoutRow kRows[] = {
    // layouts with one axis of parallelism
    {"tp2", "gpt", 2, {"tp=2"}},
    {"tp3", "gpt", 3, {"tp=3"}},
    {"tp4", "gpt", 4, {"tp=4"}},
    {"tp2_llama", "llama", 2, {"tp=2"}},
    {"tp3_llama", "llama", 3, {"tp=3"}},
    {"tp2_bert", "bert", 2, {"tp=2"}},
    {"tp4_bert", "bert", 4, {"tp=4"}},
    {"tp2_sequence", "gpt", 2, {"tp=2", "sequence=true"}, kEven},
    {"tp3_sequence", "llama", 3, {"tp=3", "sequence=true"}, kEven},
    {"tp4_sequence", "bert", 4, {"tp=4", "sequence=true"}, kEven},
    {"dp2", "gpt", 2, {"dp=2"}},
    {"dp3", "llama", 3, {"dp=3"}},
    {"dp4", "bert", 4, {"dp=4"}, kOne},
    {"pp2_none", "gpt", 2, {"pp=2", "schedule=none"}},
    {"pp2_gpipe", "gpt", 2, {"pp=2", "schedule=gpipe"}},
    {"pp3_gpipe", "llama", 3, {"pp=3", "schedule=gpipe"}},
    {"pp2_1f1b", "gpt", 2, {"pp=2", "schedule=1f1b"}},
    {"pp3_1f1b", "llama", 3, {"pp=3", "schedule=1f1b"}},
    {"pp4_1f1b", "bert", 4, {"pp=4", "schedule=1f1b"}},
    {"pp2_interleaved", "gpt", 2, {"pp=2", "schedule=interleaved", "interleave=2"}},
    {"pp3_interleaved", "llama", 3, {"pp=3", "schedule=interleaved", "interleave=1"}},
    {"pp4_interleaved",
     "gpt",
     4,
     {"pp=4", "schedule=interleaved", "interleave=2"},
     {"model.layers=9", "train.micro_batch=3"}},
    {"pp2_zb", "gpt", 2, {"pp=2", "schedule=zb-h1"}},
    {"pp3_zb", "bert", 3, {"pp=3", "schedule=zb-h1"}},
    {"pp4_zb", "llama", 4, {"pp=4", "schedule=zb-h1"}},
    {"cp2_ring", "gpt", 2, {"cp=2"}},
    {"cp3_ring", "llama", 3, {"cp=3"}},
    {"cp4_ring", "gpt", 4, {"cp=4"}},
    {"cp2_ring_bert", "bert", 2, {"cp=2"}},
    {"cp2_ulysses", "gpt", 2, {"cp=2", "context=ulysses"}},
    {"cp3_ulysses", "llama", 3, {"cp=3", "context=ulysses"}},
    {"cp4_ulysses", "bert", 4, {"cp=4", "context=ulysses"}},
    // layouts with two axes
    {"tp2_dp2", "gpt", 4, {"tp=2", "dp=2"}},
    {"tp2_dp2_zero3", "llama", 4, {"tp=2", "dp=2", "sync.method=zero3"}},
    {"tp2_sequence_dp2_zero2", "gpt", 4, {"tp=2", "sequence=true", "dp=2", "sync.method=zero2"}, kEven},
    {"tp2_pp2", "gpt", 4, {"tp=2", "pp=2"}},
    {"tp2_sequence_pp2", "llama", 4, {"tp=2", "sequence=true", "pp=2"}, kEven},
    {"tp3_pp2_zb", "bert", 6, {"tp=3", "pp=2", "schedule=zb-h1"}},
    {"tp2_cp2", "gpt", 4, {"tp=2", "cp=2"}},
    {"tp2_cp2_ulysses", "llama", 4, {"tp=2", "cp=2", "context=ulysses"}, {"model.kv_heads=4"}},
    {"tp2_sequence_cp2", "llama", 4, {"tp=2", "sequence=true", "cp=2"}, kEven},
    {"pp2_dp2", "gpt", 4, {"pp=2", "dp=2"}},
    {"pp2_dp3_zero1", "llama", 6, {"pp=2", "dp=3", "sync.method=zero1"}},
    {"pp3_dp2_zero2", "bert", 6, {"pp=3", "dp=2", "sync.method=zero2", "schedule=gpipe"}, kOne},
    {"pp2_dp2_zero3", "gpt", 4, {"pp=2", "dp=2", "sync.method=zero3"}},
    {"pp2_interleaved_dp2_zero3",
     "llama",
     4,
     {"pp=2", "schedule=interleaved", "interleave=2", "dp=2", "sync.method=zero3"},
     kOne},
    {"pp2_cp2", "gpt", 4, {"pp=2", "cp=2"}},
    {"pp2_cp2_ulysses_zb", "bert", 4, {"pp=2", "cp=2", "context=ulysses", "schedule=zb-h1"}},
    {"cp2_dp2", "gpt", 4, {"cp=2", "dp=2"}},
    {"cp2_dp2_zero3", "llama", 4, {"cp=2", "dp=2", "sync.method=zero3"}},
    // layouts with three axes
    {"tp2_pp2_dp2", "gpt", 8, {"tp=2", "pp=2", "dp=2"}},
    {"tp2_sequence_pp2_dp2_zero1", "llama", 8, {"tp=2", "sequence=true", "pp=2", "dp=2", "sync.method=zero1"}, kEven},
    {"tp2_pp2_dp2_zero3_bert", "bert", 8, {"tp=2", "pp=2", "dp=2", "sync.method=zero3", "schedule=gpipe"}},
    {"cp2_tp2_dp2", "gpt", 8, {"cp=2", "tp=2", "dp=2"}},
    {"cp2_tp2_sequence_dp2_ulysses",
     "llama",
     8,
     {"cp=2", "context=ulysses", "tp=2", "sequence=true", "dp=2"},
     {"model.seq_len=12", "model.kv_heads=2"}},
    {"cp2_tp2_pp2", "gpt", 8, {"cp=2", "tp=2", "pp=2"}},
    // layouts with mixture of experts
    {"ep2_dp2", "gpt", 2, {"dp=2", "ep=2"}, kExperts},
    {"ep4_dp4", "gpt", 4, {"dp=4", "ep=4"}, kExpertsOne},
    {"ep3_dp3", "llama", 3, {"dp=3", "ep=3"}, kExperts},
    {"ep2_dp4", "gpt", 4, {"dp=4", "ep=2"}, kExpertsOne},
    {"ep2_dp4_zero1", "llama", 4, {"dp=4", "ep=2", "sync.method=zero1"}, kExpertsOne},
    {"ep2_dp4_zero3", "gpt", 4, {"dp=4", "ep=2", "sync.method=zero3"}, kExpertsOne},
    {"ep2_cp2", "gpt", 2, {"cp=2", "ep=2"}, kExperts},
    {"ep2_dp2_tp2", "gpt", 4, {"dp=2", "ep=2", "tp=2"}, kExperts},
    {"ep2_dp2_tp2_sequence",
     "llama",
     4,
     {"dp=2", "ep=2", "tp=2", "sequence=true"},
     {"model.moe.experts=6", "model.moe.every=2", "model.seq_len=12"}},
    {"ep2_dp2_pp2", "gpt", 4, {"dp=2", "ep=2", "pp=2"}, kExperts},
    {"tp2_experts", "gpt", 2, {"tp=2"}, kExperts},
    {"pp2_experts", "gpt", 2, {"pp=2"}, kExperts},
    // other sync options: bucket orders, shard groups, prefetch, ZeRO++, offload, accumulation
    {"pp2_dp2_observed", "gpt", 4, {"pp=2", "dp=2", "sync.buckets=observed"}},
    {"pp2_dp2_cycle", "llama", 4, {"pp=2", "dp=2", "sync.buckets=cycle", "sync.cycle_ms=0.2"}},
    {"tp2_dp4_group2", "gpt", 8, {"tp=2", "dp=4", "sync.method=zero3", "sync.group=2"}, kOne},
    {"pp2_dp2_kept", "llama", 4, {"pp=2", "dp=2", "sync.method=zero3", "sync.keep_gathered=true"}},
    {"pp2_dp2_prefetch3", "gpt", 4, {"pp=2", "dp=2", "sync.method=zero3", "sync.prefetch=3", "schedule=zb-h1"}},
    {"tp2_dp4_hpz", "llama", 8, {"tp=2", "dp=4", "sync.method=zero3", "sync.quantise=hpz", "comm.nodes=2"}, kOne},
    {"pp2_dp3_tied", "gpt", 6, {"pp=2", "dp=3"}},
    {"pp2_dp4_tied_zero2", "gpt", 8, {"pp=2", "dp=4", "sync.method=zero2"}, kOne},
    {"pp3_dp4_tied_zero3", "gpt", 12, {"pp=3", "dp=4", "sync.method=zero3"}, kOne},
    {"tp2_dp2_offload", "gpt", 4, {"tp=2", "dp=2", "sync.method=zero2", "sync.offload=host"}},
    {"pp2_dp2_offload",
     "llama",
     4,
     {"pp=2", "dp=2", "sync.method=zero3", "sync.offload=host", "sync.offload_params=host", "sync.prefetch=-1"}},
    {"tp2_sequence_dp2_reduced",
     "gpt",
     4,
     {"tp=2", "sequence=true", "dp=2", "sync.method=zero3", "sync.accumulate=reduced"},
     kEven},
    // sequence classification, with padded sequences
    {"tp2_sequence_class", "bert", 2, {"tp=2", "sequence=true"}, kClass},
    {"cp2_class", "bert", 2, {"cp=2"}, kClass},
    {"cp2_ulysses_class", "bert", 2, {"cp=2", "context=ulysses"}, kClass},
    {"pp2_class", "bert", 2, {"pp=2"}, kClass},
    {"tp2_cp2_pp2_class", "bert", 8, {"tp=2", "cp=2", "pp=2"}, kClass},
    // dropout and recomputation, which must not change the result
    {"tp2_pp2_dropout", "gpt", 4, {"tp=2", "pp=2"}, {"model.dropout=0.1"}},
    {"tp2_sequence_dropout", "bert", 2, {"tp=2", "sequence=true"}, {"model.dropout=0.1", "model.seq_len=12"}},
    {"cp2_dropout", "gpt", 2, {"cp=2"}, {"model.dropout=0.1"}},
    {"tp2_pp2_recompute", "llama", 4, {"tp=2", "pp=2", "train.recompute=full"}},
    {"tp2_sequence_recompute", "gpt", 2, {"tp=2", "sequence=true", "train.recompute=selective"}, kEven},
    {"cp2_recompute", "llama", 2, {"cp=2", "train.recompute=full"}},
    {"tp2_t5", "t5", 2, {"tp=2"}, {"model.vocab=363", "data.objective=span_corruption"}},
    {"tp2_dp2_t5",
     "t5",
     4,
     {"tp=2", "dp=2", "sync.method=zero1"},
     {"model.vocab=363", "data.objective=span_corruption"}},
};

}  // namespace

std::span<const LayoutRow> layout_rows() {
  return kRows;
}

std::string layout_text(const LayoutRow& row) {
  std::string text;
  for (const std::string& one : row.layout) text += (text.empty() ? "" : " ") + one;
  for (const std::string& one : row.model) text += " (" + one + ")";
  return text;
}

}  // namespace esp::parity
