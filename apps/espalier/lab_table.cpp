#include "apps/espalier/lab_table.h"

namespace esp::app {
namespace {

constexpr Experiment kNumbers[] = {
    {{"numbers", "figures of the lectures compared with computed ones", define_lab_numbers},
     "Adam, memory and time, in numbers",
     "Sixteen bytes per parameter: mixed-precision Adam needs 2.8 TB for GPT-3's 175 billion parameters, without "
     "activations. A real run on this machine uses the same sixteen, to the byte. Then compare the two definitions of "
     "utilisation (6TP and 8TP), and the printed figures that arithmetic does not reproduce."},
};

constexpr Experiment kCollectives[] = {
    {{"collectives", "every collective on four ranks, before and after; broadcasts against their formulas",
      define_lab_collectives},
     "The collectives",
     "Eight operations, each run by four real ranks: a letter is the rank of a value, several letters are a sum. "
     "All-reduce is reduce-scatter followed by all-gather. Below, a pipelined broadcast: dividing the message into S "
     "segments turns (K−1)·N/B into (K−2+S)·N/(SB), and the virtual clock agrees to the picosecond."},
    {{"allreduce", "all-reduce algorithms: costs, times, crossovers, the ring frame by frame", define_lab_allreduce},
     "All-reduce: which algorithm, when",
     "Lines cross: the fewest rounds win for small buffers, the fewest bytes for large ones. `auto` should follow the "
     "lowest line. The nine frames of the ring are taken from a real run and compared with the algorithm.",
     "-e 4M --rounds 2"},
    {{"hosts", "hierarchical, torus and ring between hosts on a shaped link (root)", define_lab_hosts},
     "All-reduce between hosts",
     "Two hosts joined by a slow link, each a network namespace. The bytes that leave a host determine the time: a "
     "ring through ranks placed round-robin sends them G times, one through ranks in order once, and hierarchical and "
     "torus the fewest. The 3-ary 3-cube of 27 ranks needs 12 rounds."},
    {{"host-rank", "one rank of lab hosts", define_lab_host_rank, true}, "", ""},
};

constexpr Experiment kCopies[] = {
    {{"ddp", "more ranks on one model: tokens/s, efficiency, exposed communication, stragglers", define_lab_ddp},
     "Data parallelism",
     "Tokens per second should grow with ranks until all cores are busy; then ranks share cores. The second colour is "
     "exposed communication.",
     "--model gpt-6x384 --batch 1 --seq 128 --ranks 1,2,4 --rounds 2"},
    {{"exchange", "a parameter server against all-reduce: bytes and time of a real run", define_lab_exchange},
     "Parameter server or all-reduce",
     "One server transfers W·S bytes in and out while workers wait; dividing the model over K servers divides this by "
     "K; in a ring every rank sends 2(N−1)/N·S. Counters of real runs equal the formulas to the byte, and the losses "
     "of all three are equal."},
    {{"ps", "parameter servers with a straggler; priority against fifo", define_lab_ps},
     "A straggler, and the order of pushes",
     "Synchronous servers run at the pace of the slowest worker. Bounded staleness hides it for a while, asynchronous "
     "servers altogether, at a price in error. Sending what forward needs first ends the three-layer example after 8 "
     "units instead of 10.",
     "--seconds 1.5"},
    {{"staleness", "descent with old gradients: where it stops converging", define_lab_staleness},
     "Stale gradients",
     "A gradient that is τ steps old allows only a shorter step: 1, 0.618, 0.445 for τ = 1, 2, 3. Left of the "
     "threshold curves fall, right of it they grow. Asynchronous ranks of this machine show their measured staleness."},
};

constexpr Experiment kMemory[] = {
    {{"zero", "memory of a rank in the stages of ZeRO, measured against the formulas", define_lab_zero},
     "The stages of ZeRO",
     "Each stage shards one more kind of state. The mark is the formula; the bar is the allocators' memory of real "
     "ranks. Stage 3 also needs a window of gathered units; stages 1 and 2 send no more than plain data parallelism."},
    {{"offload", "the optimizer on the host or in a file, and delayed updates", define_lab_offload},
     "Offload and the delayed update",
     "With its optimizer on the host a rank keeps 2Φ bytes, and the loss is bit-identical. The cost is idle time; the "
     "delayed update hides it and changes the loss, by one step of delay."},
    {{"zeropp", "ZeRO++: bytes of gathers and reductions, within a node and between", define_lab_zeropp},
     "ZeRO++",
     "qwZ halves what gathers send, hpZ keeps backward's gathers inside a node for 2Φ/G more bytes, qgZ sends "
     "gradients as four bits. Together the bytes between nodes fall from 3Φ to 0.75Φ."},
    {{"activation", "activations of a layer and recomputation, measured against 34sbh + 5as²b", define_lab_activation},
     "Activations and recomputation",
     "The textbook layer keeps 34sbh + 5as²b bytes. Recomputing attention removes the term that grows with s², and "
     "recomputing everything leaves 2sbh for about a third more work. The default memory-efficient layer keeps less "
     "than either without recomputation."},
};

constexpr Experiment kLess[] = {
    {{"speedup", "parallel SGD on n ranks: an n-th of the noise, an n-th of the steps", define_lab_speedup},
     "Linear speed-up",
     "n ranks reduce the noise to an n-th, and reach a given error in an n-th of the steps. Measured points should lie "
     "on the dashed formula."},
    {{"throughput", "parallel SGD against n times one rank, by the ratio of communication to compute",
      define_lab_throughput},
     "Throughput and the cost of synchronisation",
     "The line of n times one rank is never reached: every step ends with an exchange. With little communication for "
     "its compute a ring stays near the line, with much it bends away; an exchange with one peer sends half and stays "
     "closer. Real ranks of this machine follow the same arithmetic."},
    {{"gossip", "decentralised SGD by graph: bytes, gaps, consensus, bias of heterogeneous nodes", define_lab_gossip},
     "Gossip",
     "The sparser the graph, the fewer bytes and the smaller the gap 1 − ρ. Heterogeneous nodes cause a floor that "
     "depends on the gap; gradient tracking removes it. In exponential graphs each node has log₂ n neighbours, and "
     "mixing is nearly as good as in the full graph."},
    {{"local", "local SGD, FedAvg, DiLoCo compared with parallel SGD: bytes and loss", define_lab_local},
     "Local steps",
     "Averaging every τ steps sends a τ-th of the bytes. Between averages replicas diverge, the more the more "
     "heterogeneous their data, which shows as a floor."},
    {{"compression", "compressors measured; descent with and without feedback", define_lab_compression},
     "Compression",
     "Bytes per value against the error a compressor makes. Biased compressors (Top-K, sign) need error feedback: "
     "without it descent stalls or diverges, with it the curve approaches the uncompressed one."},
};

constexpr Experiment kDivided[] = {
    {{"pipeline", "the schedules of a pipeline, executed and in virtual time, with their bubbles", define_lab_pipeline},
     "Pipelines and their bubbles",
     "One row per stage. GPipe and 1F1B have the same bubble (P−1)/(m+P−1) but 1F1B holds P micro-batches instead of "
     "m; interleaving divides the bubble by v, and ZB-H1 fills it with weight gradients."},
    {{"tensor", "a layer divided over ranks: what it sends and keeps", define_lab_tensor},
     "Tensor parallelism",
     "Column then row: one all-reduce forward and one backward for each half of a layer, four in all. The chain y = "
     "W₃W₂W₁x can be divided in many ways, and the two of the lecture differ in what they send."},
    {{"context", "one sequence over several ranks: ring steps, work, bytes and memory", define_lab_context},
     "One long sequence",
     "Ring attention passes keys and values around; with a causal mask contiguous pieces give the last rank most of "
     "the work, zig-zag pieces balance it. Ulysses exchanges heads for tokens instead."},
    {{"moe", "loads of experts, dropped tokens by capacity, bytes against the formula", define_lab_moe},
     "Mixture of experts",
     "Experts are loaded unevenly without the auxiliary loss; tokens beyond the capacity are dropped. Two all-to-alls "
     "in forward and two in backward, with the bytes of the formula."},
};

constexpr Experiment kTogether[] = {
    {{"policies", "3D layouts: six search methods, and 2×2×2 compared with one process", define_lab_policies},
     "Three dimensions, and the search for the best",
     "Every point is a layout: time against memory. All methods find the same best layout and differ in the number of "
     "layouts they evaluate. Below, a real 2×2×2 run on eight ranks: its losses equal those of one process."},
};

constexpr Chapter kChapters[] = {
    {"Numbers", kNumbers},           {"Collectives", kCollectives},
    {"Data parallelism", kCopies},   {"Memory", kMemory},
    {"Less communication", kLess},   {"Model parallelism", kDivided},
    {"Three dimensions", kTogether},
};

}  // namespace

std::span<const Chapter> chapters() {
  return kChapters;
}

}  // namespace esp::app
