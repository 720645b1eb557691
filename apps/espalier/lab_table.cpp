#include "apps/espalier/lab_table.h"

namespace esp::app {
namespace {

constexpr Experiment kNumbers[] = {
    {{"numbers", "figures of the lectures, compared with computed ones", define_lab_numbers},
     "Adam, memory and time, in numbers",
     "Sixteen bytes per parameter: mixed-precision Adam needs 2.8 TB for GPT-3's 175 billion parameters, without "
     "activations. A real run on this machine uses the same sixteen, to the byte. Then compare the two definitions of "
     "utilisation (6TP and 8TP), and the printed figures that arithmetic does not reproduce."},
};

constexpr Experiment kCollectives[] = {
    {{"collectives", "every collective on four ranks, before and after; broadcasts compared with formulas",
      define_lab_collectives},
     "The collectives",
     "Eight operations, each run by four real ranks. A letter names the rank of a value, several letters a sum. "
     "All-reduce is reduce-scatter followed by all-gather. Below, a pipelined broadcast: dividing the message into S "
     "segments turns (K−1)·N/B into (K−2+S)·N/(SB), and the simulated time equals this formula to the picosecond."},
    {{"allreduce", "all-reduce algorithms: costs, times, crossovers, the ring frame by frame", define_lab_allreduce},
     "All-reduce: which algorithm, when",
     "The lines cross: fewest rounds is fastest for small buffers, fewest bytes for large ones. "
     "`auto` should follow the lowest line. The nine frames of the ring are taken from a real run "
     "and compared with the algorithm.",
     "-e 4M --rounds 2"},
    {{"hosts", "hierarchical, torus and ring between hosts on a shaped link (root)", define_lab_hosts},
     "All-reduce between hosts",
     "Two hosts with a slow link between them, each a network namespace. The bytes that leave a "
     "host determine the time. A ring through ranks placed round-robin sends G times the bytes of "
     "a ring through ranks in order; hierarchical and torus send the fewest. The 3-ary 3-cube of "
     "27 ranks needs 12 rounds."},
    {{"host-rank", "one rank of lab hosts", define_lab_host_rank, true}, "", ""},
};

constexpr Experiment kDataParallel[] = {
    {{"ddp", "weak scaling of one model: tokens/s, efficiency, exposed communication, stragglers", define_lab_ddp},
     "Data parallelism",
     "Tokens per second should grow with ranks until all cores are busy; then ranks share cores. The second colour is "
     "exposed communication.",
     "--model gpt-6x384 --batch 1 --seq 128 --ranks 1,2,4 --rounds 2"},
    {{"exchange", "parameter server compared with all-reduce: bytes and time of a real run", define_lab_exchange},
     "Parameter server or all-reduce",
     "One server transfers W·S bytes in and out while workers wait; dividing the model over K servers divides this by "
     "K; in a ring every rank sends 2(N−1)/N·S. Counters of real runs equal the formulas to the byte, and the losses "
     "of all three are equal."},
    {{"ps", "parameter servers with a straggler; priority and FIFO order of pushes", define_lab_ps},
     "A straggler, and the order of pushes",
     "Synchronous servers are as slow as the slowest worker. Bounded staleness hides the straggler "
     "for a while; asynchronous servers hide it completely, but the error is larger. If the layers "
     "that forward needs first are sent first, the three-layer example takes 8 units instead of "
     "10.",
     "--seconds 1.5"},
    {{"staleness", "gradient descent with delayed gradients: where it stops converging", define_lab_staleness},
     "Stale gradients",
     "A delay of τ steps limits the stable step size: 1, 0.618, 0.445 for τ = 1, 2, 3. Curves "
     "below the threshold fall, curves above it grow. The staleness of asynchronous ranks is "
     "measured on this machine."},
};

constexpr Experiment kMemory[] = {
    {{"zero", "memory per rank in each ZeRO stage, compared with the formulas", define_lab_zero},
     "The stages of ZeRO",
     "Each stage shards one more kind of state. The mark is the formula; the bar is the allocators' memory of real "
     "ranks. Stage 3 also needs a window of gathered units; stages 1 and 2 send no more than plain data parallelism."},
    {{"offload", "the optimizer on the host or in a file, and delayed updates", define_lab_offload},
     "Offload and the delayed update",
     "With the optimizer on the host, a rank keeps 2Φ bytes on the device, and the loss is bit-identical. The cost is "
     "idle time. The delayed update hides it, but changes the loss: each update is one step late."},
    {{"zeropp", "ZeRO++: bytes of gathers and reductions, within and between nodes", define_lab_zeropp},
     "ZeRO++",
     "qwZ halves the bytes of weight gathers. hpZ keeps the gathers of backward inside a node, for "
     "2Φ/G more memory. qgZ sends gradients as 4-bit values. All three together reduce the bytes "
     "between nodes from 3Φ to 0.75Φ."},
    {{"activation", "activation memory of a layer and recomputation, compared with 34sbh + 5as²b",
      define_lab_activation},
     "Activations and recomputation",
     "The textbook layer keeps 34sbh + 5as²b bytes. Recomputing attention removes the term that grows with s², and "
     "recomputing everything leaves 2sbh for about a third more work. The default memory-efficient layer keeps less "
     "than 34sbh even without recomputation."},
};

constexpr Experiment kLessCommunication[] = {
    {{"speedup", "parallel SGD on n ranks: 1/n of the noise, 1/n of the steps", define_lab_speedup},
     "Linear speed-up",
     "n ranks reduce the noise to 1/n, and reach a given error in 1/n of the steps. Measured points should lie on the "
     "dashed line of the formula."},
    {{"throughput", "throughput of parallel SGD, by the ratio of communication to compute", define_lab_throughput},
     "Throughput and the cost of synchronisation",
     "The line of n times one rank is never reached, because every step ends with an exchange. A "
     "ring stays near the line if communication takes little time compared with compute. An "
     "exchange with one peer sends half the bytes of a ring and stays nearer. Real ranks on this "
     "machine follow the same model."},
    {{"gossip", "decentralised SGD on several graphs: bytes, spectral gaps, consensus, bias", define_lab_gossip},
     "Gossip",
     "A sparser graph sends fewer bytes, but has a smaller spectral gap 1 − ρ. With heterogeneous "
     "nodes the error stops at a floor that depends on the gap; gradient tracking removes the "
     "floor. In exponential graphs each node has log₂ n neighbours, and mixing is nearly as good "
     "as in the full graph."},
    {{"local", "local SGD, FedAvg, DiLoCo compared with parallel SGD: bytes and loss", define_lab_local},
     "Local steps",
     "Averaging every τ steps sends 1/τ of the bytes. Between averages the replicas diverge. The more heterogeneous "
     "their data, the higher the floor of the error."},
    {{"compression", "error and speed of compressors; gradient descent with and without error feedback",
      define_lab_compression},
     "Compression",
     "Bytes per value and the error of each compressor. Biased compressors (Top-K, sign) need error feedback: "
     "without it descent stalls or diverges, with it the curve approaches the uncompressed one."},
};

constexpr Experiment kModelParallel[] = {
    {{"pipeline", "pipeline schedules, executed and simulated, with their bubbles", define_lab_pipeline},
     "Pipelines and their bubbles",
     "One row per stage. GPipe and 1F1B have the same bubble (P−1)/(m+P−1) but 1F1B holds P micro-batches instead of "
     "m; interleaving divides the bubble by v, and ZB-H1 fills it with weight gradients."},
    {{"tensor", "a tensor-parallel layer: bytes sent, activations kept", define_lab_tensor},
     "Tensor parallelism",
     "Column-parallel, then row-parallel: one all-reduce in forward and one in backward for each "
     "half of a layer, four in total. The chain y = W₃W₂W₁x can be divided in many ways; the "
     "lecture's two partitions send different numbers of bytes."},
    {{"context", "one sequence over several ranks: ring steps, work, bytes and memory", define_lab_context},
     "One long sequence",
     "Ring attention passes keys and values around; with a causal mask contiguous pieces give the last rank most of "
     "the work, zig-zag pieces balance the work. Ulysses divides attention by heads instead, with all-to-alls."},
    {{"moe", "expert loads, dropped tokens by capacity, bytes compared with the formula", define_lab_moe},
     "Mixture of experts",
     "Without the load-balancing loss, experts have unequal loads; tokens beyond the capacity are dropped. Forward and "
     "backward each run two all-to-alls, which send the bytes of the formula."},
};

constexpr Experiment kThreeDimensions[] = {
    {{"policies", "3D layouts: six search methods, and 2×2×2 compared with one process", define_lab_policies},
     "Three dimensions, and the search for the best",
     "Every point is a layout: time against memory. All methods find the same best layout and differ in the number of "
     "layouts they evaluate. Below, a real 2×2×2 run on eight ranks: its losses equal those of one process."},
};

constexpr Chapter kChapters[] = {
    {"Numbers", kNumbers},
    {"Collectives", kCollectives},
    {"Data parallelism", kDataParallel},
    {"Memory", kMemory},
    {"Less communication", kLessCommunication},
    {"Model parallelism", kModelParallel},
    {"Three dimensions", kThreeDimensions},
};

}  // namespace

std::span<const Chapter> chapters() {
  return kChapters;
}

}  // namespace esp::app
