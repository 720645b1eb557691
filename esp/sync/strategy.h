// Strategy: how replicas and shards of a model are synchronised. It is the interface between the training loop of one
// rank and the other ranks.
//
// A strategy places a model's weights and gradients on this rank. Weight::on_ready notifies it when a gradient is
// complete. After `finish` every owned gradient is the sum over the ranks. After `after_step` every rank computes with
// the same weights, except with divergent replicas (divergent_replicas.h). Implementations: all-reduce, ZeRO 1 to 3,
// parameter servers, gossip, local steps (strategies.cpp).
//
// The order of one step, the same on every rank:
//   begin_step, then per micro-batch begin_pass … forward, backward … end_pass, then finish, sums_of_squares,
//   the optimizer's step over optimizer_shards(), after_step.
// Before backward, losses are divided by the token count of all ranks, so gradients are summed, not averaged.
//
// All calls come from one thread. The communicator, the parameter list and the context outlive the strategy.
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

// The [sync] section of a run file, and other settings of the run that a strategy needs.
struct Options {
  std::string method = "allreduce";
  double bucket_mb = 25, first_bucket_mb = 1;  // gradient bucket sizes in MiB
  // allreduce: composition of the gradient buckets: fixed, observed (in completion order) or cycle (tensor fusion)
  std::string buckets = "fixed";
  double fusion_mb = 64, cycle_ms = 3;  // buckets = cycle: maximum size and period of the fused buffer
  std::string wire = "auto";            // wire type of gradients: auto (as stored), fp32, bf16, fp16
  std::string compress = "none";        // compressor of gradients or weight changes, such as "topk:0.01" (compress/)
  // error feedback method: none, ef, …, onebit_adam (compress/error_feedback.h)
  std::string feedback = "none";
  bool force = false;           // true: a compressor that diverges in theory with this feedback causes only a warning
  int64_t onebit_warmup = 100;  // onebit_adam: steps of Adam before the variance is frozen
  // where the gradients of micro-batches are added: local (before the reduction), reduced (after it), auto
  std::string accumulate = "auto";
  int64_t prefetch = 1;        // zero3: number of units gathered ahead; -1: chosen by measurement (with offload_params)
  bool keep_gathered = false;  // zero3: keeps the units gathered in forward for backward
  int64_t group = 0;           // zero1 to zero3: ranks per shard group; 0: all ranks
  std::string quantise = "none";        // zero3: any of qwz, hpz, qgz, separated by commas
  int64_t quantise_block = 2048;        // qwz: number of values that share a scale
  int64_t quantise_grad_block = 128;    // qgz: number of gradients that share a scale; four bits need smaller blocks
  std::string offload_params = "none";  // zero3: where parameter shards are stored: none (on the device), host, file
  bool update_early = false;            // zero3: the optimizer updates as gradients arrive and stores no gradients
  bool direct_access = false;           // with offload_params: reads only the embedding rows in use
  std::string topology = "ring";  // gossip: a topology name (gossip/gossip_topology.h), or the path of a graph file
  // gossip: adapt_then_combine, combine_then_adapt or adapt_with_combine
  std::string gossip_mode = "adapt_then_combine";
  bool tracking = false;        // gossip: gradient tracking
  double gossip_step = 0.3;     // compressed gossip: step size γ towards the average of the neighbours
  int64_t period = 0;           // gossip: steps between global averages, 0: never; diloco: number of inner steps
  int64_t consensus_every = 0;  // steps between extra measurements of the consensus distance; 0: no extra ones
  bool hierarchical = false;    // gossip, local: the ranks of a node sum their gradients every step
  int64_t tau = 8;              // local: steps between averages
  int64_t local_after = 0;      // local, diloco: before this step gradients are all-reduced
  int64_t sample = 0;           // local: number of clients sampled per round; 0: all
  // local: weights of the replicas in an average: equal, or tokens (in proportion to the tokens read in the round)
  std::string client_weights = "equal";
  bool average_state = false;  // local: also averages the optimizer state
  // local: path of the average: allreduce, or servers (only the sampled clients push)
  std::string average_over = "allreduce";
  // diloco: learning rate and momentum of the outer optimizer (Nesterov SGD)
  double outer_lr = 0.7, outer_momentum = 0.9;
  PsOptions ps;                // options of parameter servers (method ps)
  uint64_t seed = 1;           // seed of all random draws of the strategy
  bool deterministic = false;  // adds in rank order, so sums do not depend on chunking or layout
};

class Offload;

// GradientSink: receives reduced gradients that are not kept on the device, for example the offloaded optimizer.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Receives elements [first, first + piece.count()) of the range optimizer_shards()[owned]. `add`: true: adds to the
  // gradients received before; false: replaces them.
  virtual void take_gradient(size_t owned, int64_t first, const tensor::Tensor& piece, bool add) = 0;
  virtual tensor::Tensor gradient(size_t owned) = 0;  // the gradients of a whole range, once complete
};

struct Setup {
  comm::Communicator* ranks = nullptr;  // null for a single rank
  int ranks_per_node = 1;
  nn::ParameterList* parameters = nullptr;
  tensor::Context context;
  DType storage = DType::f32;
  Options options;
  Duration timeout = std::chrono::minutes(10);  // maximum duration of each wait for other ranks
  // zero2, zero3: reduced gradients are passed to a sink. The caller then calls set_sink, and OptimizerShard::grads are
  // undefined.
  bool gradients_to_sink = false;
  Offload* offload = nullptr;      // host memory and host link for offload_params; outlives the strategy
  obs::TraceRow* trace = nullptr;  // row of the trace that shows waits for other ranks
};

struct PassOptions {
  bool training = true;
  bool last = true;  // last micro-batch of the step: accumulated gradients are sent during this pass
};

// Durations, summed since begin_step.
struct StepTimes {
  double exposed_ms = 0;  // time spent waiting for communication
};

// A communicator that the strategy uses, with a name for reports.
struct NamedGroup {
  std::string_view name;
  const comm::Communicator* comm;
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // Calls f for one unit after another, with whole weights; the values that f writes become the unit's weights. For
  // initialisation and loading: every rank writes the same values. Sends nothing.
  virtual void fill(const std::function<void(nn::ParameterList::Unit&)>& f) = 0;
  // The ranges that this rank updates, with the tensors of their weights and gradients. The tensors do not change
  // during the strategy's lifetime.
  virtual std::vector<optim::OptimizerShard> optimizer_shards() = 0;
  // The ranges that this rank writes to a checkpoint. Together the ranks write every value once.
  virtual std::vector<optim::ValueShard> checkpoint_shards() = 0;

  virtual void set_sink(GradientSink*) {}

  virtual void begin_step() = 0;
  virtual void begin_pass(const PassOptions& pass) = 0;
  virtual void begin_backward() {}  // called between forward and backward of a training pass
  virtual void end_pass() = 0;
  virtual void finish() = 0;
  // Σ g² of each unit over its counted parameters (Parameter::counted); bit-identical on every rank. Call after finish;
  // valid until the next call.
  virtual const std::vector<double>& sums_of_squares() = 0;
  virtual void after_step() = 0;

  // Returns the strategy's own optimizer; null: the trainer creates an optimizer over optimizer_shards().
  virtual std::unique_ptr<optim::Optimizer> make_optimizer(const optim::OptimizerOptions&) { return nullptr; }
  virtual AsyncWorkers* async_workers() { return nullptr; }            // null: all ranks take every step together
  virtual DivergentReplicas* divergent_replicas() { return nullptr; }  // null: all replicas are equal after every step

  // State of this rank that a checkpoint must contain in addition to checkpoint_shards() and the optimizer state. For
  // divergent replicas see DivergentReplicas::extra_state.
  virtual std::vector<ExtraState> extra_state() { return {}; }

  virtual StepTimes times() const = 0;
  // messages for the log about decisions since the last call
  virtual std::vector<std::string> take_notes() { return {}; }
  virtual std::vector<NamedGroup> groups() const { return {}; }
  // statistics of point-to-point messages, for reports
  virtual std::vector<comm::CallStats> messages() const { return {}; }
};

struct StrategyRow {
  std::string_view name, help;
  std::unique_ptr<Strategy> (*make)(const Setup& setup);
};
std::span<const StrategyRow> strategies();
// Creates the strategy. Throws UsageError for an unknown method (the message lists the known methods) and for options
// that cannot be combined (with a suggestion).
std::unique_ptr<Strategy> make_strategy(const Setup& setup);
// Throws UsageError if an option has an unknown value; also checks options of methods that are not selected.
void check_words(const Options& options);

}  // namespace esp::sync
