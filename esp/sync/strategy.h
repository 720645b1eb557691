// Strategy: how replicas and shards of a model are synchronised, the interface between the training of one rank and the
// other ranks.
//
// A strategy places a model's weights and gradients on this rank and is notified through Weight::on_ready when a
// gradient is complete. After `finish` every owned gradient is the sum over the ranks, and after `after_step` every
// rank computes with the same weights, except with divergent replicas (divergent_replicas.h). Implementations:
// all-reduce, ZeRO 1 to 3, parameter servers, gossip, local steps (strategies.cpp).
//
// The order of one step, the same on every rank:
//   begin_step, then per micro-batch begin_pass … forward, backward … end_pass, then finish, sums_of_squares,
//   the optimizer's step over owned(), after_step.
// Losses are scaled by the count over all ranks before backward, so gradients are summed, not averaged.
//
// One thread; the communicator, the parameter list and the context outlive the strategy.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/nn/parameter.h"
#include "esp/obs/spans.h"
#include "esp/optim/optimizer.h"
#include "esp/sync/async_workers.h"
#include "esp/sync/divergent_replicas.h"
#include "esp/sync/extra_state.h"
#include "esp/sync/ps/options.h"

namespace esp::sync {

// [sync] of a run file, and other settings of the run that a strategy needs.
struct Options {
  std::string method = "allreduce";
  double bucket_mb = 25, first_bucket_mb = 1;  // MiB
  std::string buckets = "fixed";               // allreduce: fixed, in observed order, or fused every cycle
  double fusion_mb = 64, cycle_ms = 3;         // cycle: size limit and period of fusion
  std::string wire = "auto";                   // wire type of gradients: auto (as stored), fp32, bf16, fp16
  std::string compress = "none";               // compressor of gradients, or of changes: "topk:0.01" (compress/)
  std::string feedback = "none";               // error feedback: none, ef, …, onebit_adam
  bool force = false;                          // a pair that diverges by theory: warning instead of error
  int64_t onebit_warmup = 100;                 // onebit_adam: steps of Adam before the variance is frozen
  std::string accumulate = "auto";             // over micro-batches: local (before reducing), reduced (after), auto
  int64_t prefetch = 1;                        // zero3: units gathered ahead; -1: measured (with offload_params)
  bool keep_gathered = false;                  // zero3: units gathered in forward are kept for backward
  int64_t group = 0;                           // zero1-3: ranks per shard group; 0: all
  std::string quantise = "none";               // zero3: of qwz, hpz, qgz, joined by commas
  int64_t quantise_block = 2048;               // values per scale in qwz
  int64_t quantise_grad_block = 128;           // gradients per scale in qgz: four bits need smaller blocks
  std::string offload_params = "none";         // zero3: storage of parameter shards: none (the device), host, file
  bool update_early = false;                   // zero3: the sink updates as gradients arrive and stores none
  bool direct_access = false;                  // with offload_params: look-ups read the rows they touch, not the table
  std::string topology = "ring";               // gossip: a name of gossip/gossip_topology.h, or a graph file
  std::string gossip_mode = "adapt_then_combine";  // or combine_then_adapt, adapt_with_combine
  bool tracking = false;                           // gossip: gradient tracking
  double gossip_step = 0.3;                        // compressed gossip: step size γ towards the neighbours' average
  int64_t period = 0;                           // gossip: steps between global averages (0: never); diloco: inner steps
  int64_t consensus_every = 0;                  // steps between measurements of the consensus distance; 0: none extra
  bool hierarchical = false;                    // gossip, local: ranks of a node sum their gradients every step
  int64_t tau = 8;                              // local: steps between averages
  int64_t local_after = 0;                      // local, diloco: gradients are all-reduced before this step
  int64_t sample = 0;                           // local: clients per round; 0: all
  std::string client_weights = "equal";         // local: or tokens: those that a replica has read in the round
  bool average_state = false;                   // local: averages the optimizer state too
  std::string average_over = "allreduce";       // local: or servers, to which only the sampled clients push
  double outer_lr = 0.7, outer_momentum = 0.9;  // diloco
  PsOptions ps;                                 // ps
  uint64_t seed = 1;                            // of random draws
  bool deterministic = false;                   // sums in rank order, independent of the layout
};

class Offload;

// Receives reduced gradients that this rank does not keep on the device.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Elements [first, first + piece.count()) of owned()[owned]: overwrites, or adds.
  virtual void take(size_t owned, int64_t first, const tensor::Tensor& piece, bool add) = 0;
  virtual tensor::Tensor taken(size_t owned) = 0;  // all gradients of a range, when complete
};

struct Setup {
  comm::Communicator* ranks = nullptr;  // null: one rank
  int ranks_per_node = 1;
  nn::ParameterList* parameters = nullptr;
  tensor::Context context;
  DType storage = DType::f32;
  Options options;
  Duration timeout = std::chrono::minutes(10);  // of one wait for other ranks
  // Reduced gradients are passed to the sink (zero2, zero3): Owned::grads are then undefined, and set_sink is called.
  bool gradients_to_sink = false;
  Offload* offload = nullptr;      // host memory and link, for offload_params; outlives the strategy
  obs::TraceRow* trace = nullptr;  // row for waits on other ranks
};

struct PassOptions {
  bool training = true;
  bool last = true;  // of the step's micro-batches: accumulated gradients are sent with it
};

// Since begin_step.
struct StepTimes {
  double exposed_ms = 0;  // time spent waiting for communication
};

// A communicator of the strategy, for reports.
struct NamedGroup {
  std::string_view name;
  const comm::Communicator* comm;
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // Calls f for each unit in turn while its weights are gathered; f's writes become the unit's weights. For
  // initialisation and loading: every rank writes the same. Sends nothing.
  virtual void fill(const std::function<void(nn::ParameterList::Unit&)>& f) = 0;
  // The ranges this rank updates, and their storage; the same tensors for the strategy's life.
  virtual std::vector<optim::OptimizerShard> owned() = 0;
  // The ranges this rank writes to a checkpoint; the ranks together write each value once.
  virtual std::vector<optim::ValueShard> held() = 0;

  virtual void set_sink(GradientSink*) {}

  virtual void begin_step() = 0;
  virtual void begin_pass(const PassOptions& pass) = 0;
  virtual void begin_backward() {}  // forward of the pass is complete; not called without training
  virtual void end_pass() = 0;
  virtual void finish() = 0;
  // Σ g² of each unit, over its counted parameters (Parameter::counted); bit-identical on every rank. Borrowed until
  // the next call. After finish.
  virtual const std::vector<double>& sums_of_squares() = 0;
  virtual void after_step() = 0;

  // The strategy's optimizer, where the trainer must not create one over owned().
  virtual std::unique_ptr<optim::Optimizer> make_optimizer(const optim::OptimizerOptions&) { return nullptr; }
  virtual AsyncWorkers* async_workers() {
    return nullptr;
  }  // null: every rank computes every step together with the others
  virtual DivergentReplicas* divergent_replicas() { return nullptr; }  // null: replicas are equal after every step

  // State that a checkpoint must contain for this rank, beside held() and the optimizer's state; with divergent
  // replicas use DivergentReplicas::extra_state.
  virtual std::vector<ExtraState> extra_state() { return {}; }

  virtual StepTimes times() const = 0;
  virtual std::vector<std::string> take_notes() { return {}; }  // decisions since the last call, for the log
  virtual std::vector<NamedGroup> groups() const { return {}; }
  virtual std::vector<comm::CallStats> messages() const { return {}; }  // further messages, for reports
};

struct StrategyRow {
  std::string_view name, help;
  std::unique_ptr<Strategy> (*make)(const Setup& setup);
};
std::span<const StrategyRow> strategies();
// UsageError lists the known methods, or the options that cannot be combined, with a suggestion.
std::unique_ptr<Strategy> make_strategy(const Setup& setup);
// UsageError for an unknown word of any option, also of methods that are not selected.
void check_words(const Options& options);

}  // namespace esp::sync
