// How the copies of a model agree: the seam between one rank's training and the others.
//
// A strategy decides where a model's values and gradients lie on this rank, hears through Weight::on_ready when a
// gradient is complete, and sees to it that after `finish` every owned gradient is the sum over the ranks and after
// `after_step` every rank computes with the same values, unless copies go their own ways (apart.h). Behind it:
// all-reduce, ZeRO 1 to 3, parameter servers, gossip, local steps (strategies.cpp).
//
// The order of one step, the same on every rank:
//   begin_step, then per micro-batch begin_pass … forward, backward … end_pass, then finish, sums_of_squares,
//   the optimizer's step over owned(), after_step.
// Losses are scaled by the count over all ranks before backward, so gradients are summed, not averaged.
//
// One thread calls; the communicator, the list and the context outlive the strategy.
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
#include "esp/sync/apart.h"
#include "esp/sync/clocks.h"
#include "esp/sync/ps/options.h"
#include "esp/sync/remembered.h"

namespace esp::sync {

// [sync] of a run file, and what else a strategy must know of the run.
struct Options {
  std::string method = "allreduce";
  double bucket_mb = 25, first_bucket_mb = 1;  // MiB
  std::string buckets = "fixed";               // allreduce: cut beforehand, as observed, or fused every cycle
  double fusion_mb = 64, cycle_ms = 3;         // cycle: at most so much together, so often
  std::string wire = "auto";                   // what gradients travel as: auto (as they are), fp32, bf16, fp16
  std::string compress = "none";               // what gradients, or moves, travel as, "topk:0.01" (compress/)
  std::string feedback = "none";               // and what becomes of what is left out: none, ef, …, onebit_adam
  bool force = false;                          // a pair that diverges by theory: a warning, no error
  int64_t onebit_warmup = 100;                 // onebit_adam: steps of Adam before the variance is frozen
  std::string accumulate = "auto";             // over micro-batches: local (before reducing), reduced (after), auto
  int64_t prefetch = 1;                        // zero3: units gathered ahead; -1: as measured (with offload_params)
  bool keep_gathered = false;                  // zero3: units gathered in forward stay for backward
  int64_t group = 0;                           // zero1-3: ranks that share one set of shards; 0: all
  std::string quantise = "none";               // zero3: of qwz, hpz, qgz, joined by commas
  int64_t quantise_block = 2048;               // values that share a scale in qwz
  int64_t quantise_grad_block = 128;           // gradients in qgz: four bits want a scale that fits more closely
  std::string offload_params = "none";         // zero3: where shards of values lie: none (the device), host, file
  bool update_early = false;                   // zero3, the sink updates as gradients come and keeps none
  bool direct_access = false;                  // with offload_params: look-ups take the rows they touch, not the table
  std::string topology = "ring";               // gossip: who hears whom: a name of gossip/topology.h, or a file
  std::string gossip_mode = "adapt_then_combine";  // or combine_then_adapt, adapt_with_combine
  bool tracking = false;                           // gossip: neighbours average gradients too
  double gossip_step = 0.3;                        // gossip of codes: how far copies go to what they heard
  int64_t period = 0;                           // gossip: steps between averages of all (0: never); diloco: inner steps
  int64_t consensus_every = 0;                  // steps between measures of how far copies are apart; 0: none extra
  bool hierarchical = false;                    // gossip, local: the copies of a node add their gradients every step
  int64_t tau = 8;                              // local: steps between averages
  int64_t local_after = 0;                      // local, diloco: before this step copies add their gradients
  int64_t sample = 0;                           // local: copies whose work counts in a round; 0: all
  std::string client_weights = "equal";         // local: or tokens, those a copy has read in the round
  bool average_state = false;                   // local: the optimizer's state is averaged too
  std::string average_over = "allreduce";       // local: or servers, to which only the copies drawn push
  double outer_lr = 0.7, outer_momentum = 0.9;  // diloco
  PsOptions ps;                                 // ps
  uint64_t seed = 1;                            // of what is drawn
  bool deterministic = false;                   // sums in rank order, whatever the layout
};

class Offload;

// Where reduced gradients go that this rank does not keep on the device.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Elements [first, first + piece.count()) of owned()[owned]: over what is there, or added to it.
  virtual void take(size_t owned, int64_t first, const tensor::Tensor& piece, bool add) = 0;
  virtual tensor::Tensor taken(size_t owned) = 0;  // all of them, when all have come
};

struct Setup {
  comm::Communicator* ranks = nullptr;  // null: this rank is alone
  int ranks_per_node = 1;
  nn::ParameterList* parameters = nullptr;
  tensor::Context context;
  DType storage = DType::f32;
  Options options;
  Duration timeout = std::chrono::minutes(10);  // of one wait for the others
  // Reduced gradients go to the sink (zero2, zero3): Owned::grads are then undefined, and set_sink is called.
  bool gradients_leave = false;
  Offload* offload = nullptr;      // the host's memory and the link to it, for offload_params; outlives the strategy
  obs::TraceRow* trace = nullptr;  // waiting for others is drawn here
};

struct Pass {
  bool training = true;
  bool last = true;  // of the step's micro-batches: gradients accumulated so far leave with it
};

// Since begin_step.
struct StepTimes {
  double exposed_ms = 0;  // waited for communication
};

// A communicator of the strategy's own, for reports.
struct Group {
  std::string_view name;
  const comm::Communicator* comm;
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // Calls f for each unit in turn while its values are whole; what f leaves there becomes the unit's value. For
  // initialising and loading: every rank fills alike. Nothing is sent.
  virtual void fill(const std::function<void(nn::ParameterList::Unit&)>& f) = 0;
  // What this rank updates, and where it lies; the same tensors for the strategy's life.
  virtual std::vector<optim::Owned> owned() = 0;
  // What this rank writes into a checkpoint, so that all ranks together write each value once.
  virtual std::vector<optim::Held> held() = 0;

  virtual void set_sink(GradientSink*) {}

  virtual void begin_step() = 0;
  virtual void begin_pass(const Pass& pass) = 0;
  virtual void begin_backward() {}  // the pass's forward is over; not called where nothing is trained
  virtual void end_pass() = 0;
  virtual void finish() = 0;
  // Σ g² of each unit, over those of its parameters that count (Parameter::counted), whoever owns them; the same bits
  // on every rank. Lent until the next call. After finish.
  virtual const std::vector<double>& sums_of_squares() = 0;
  virtual void after_step() = 0;

  // Where it is not for the trainer to make one over owned(): the optimizer to step with.
  virtual std::unique_ptr<optim::Optimizer> make_optimizer(const optim::OptimizerOptions&) { return nullptr; }
  virtual Clocks* clocks() { return nullptr; }  // null: every rank computes every step, together with the others
  virtual Apart* apart() { return nullptr; }    // null: copies are the same after every step

  // What a checkpoint must hold of this rank beside held() and the optimizer's state; of copies that go their own ways
  // it is Apart's.
  virtual std::vector<Remembered> remembered() { return {}; }

  virtual StepTimes times() const = 0;
  virtual std::vector<std::string> take_notes() { return {}; }  // what it decided since asked last, for the log
  virtual std::vector<Group> groups() const { return {}; }
  virtual std::vector<comm::CallStats> messages() const { return {}; }  // what it sends beside them, for reports
};

struct StrategyRow {
  std::string_view name, help;
  std::unique_ptr<Strategy> (*make)(const Setup& setup);
};
std::span<const StrategyRow> strategies();
// UsageError lists the known methods, or says which options do not go together and what would.
std::unique_ptr<Strategy> make_strategy(const Setup& setup);
// UsageError names a word of the options that is not known, also of methods other than the one they name.
void check_words(const Options& options);

}  // namespace esp::sync
