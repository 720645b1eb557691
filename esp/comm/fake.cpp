#include "esp/comm/fake.h"

#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/arguments.h"
#include "esp/comm/plan_cache.h"
#include "esp/comm/preferences.h"
#include "esp/comm/selector.h"

namespace esp::comm {
namespace {

class Fake final : public Communicator {
 public:
  Fake(int rank, int size, const CommOptions& options, const AlphaBeta& link)
      : rank_(rank), size_(size), options_(options), preferences_(parse_preferences(options.algorithms)) {
    if (link.alpha > 0 || link.beta > 0) {
      tiers_.links.fill(link);
      tiers_.measured = true;
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void run(const Call& call) override {
    if (dead_) throw *dead_;
    check_arguments(call, rank_, size_);
    switch (call.op) {
      case Op::send:
        return count(call, "message", call.count, 0, 1, 1);
      case Op::recv:
        return count(call, "message", 0, call.count, 0, 1);
      case Op::signal:
      case Op::wait:
        return count(call, "store", 0, 0, 0, 0);
      case Op::all_to_all_v:
        return count_irregular(call);
      default:
        return count_schedule(call);
    }
  }

  Work start(const Call& call) override {
    run(call);
    return {};
  }

  Work start_group(std::span<const Call> calls) override {
    for (const Call& call : calls) run(call);
    return {};
  }

  // The fake knows only this rank's colour. It assumes that all members have the same colour, so the group keeps its
  // size.
  std::unique_ptr<Communicator> split(int colour, int) override {
    if (colour < 0) return nullptr;
    CommOptions options = options_;
    options.shape.clear();
    return std::make_unique<Fake>(rank_, size_, options, tiers_.at(Tier::host));
  }

  std::unique_ptr<net::Transport> open_transport() override { return nullptr; }
  std::shared_ptr<void> allocate(size_t bytes) override {
    void* memory = std::malloc(std::max<size_t>(bytes, 1));
    if (!memory) throw std::bad_alloc();
    return {memory, std::free};
  }

  void abort(const std::string& why) override {
    dead_ = CommError(CommError::Kind::aborted, rank_, fmt::format("rank {} aborted: {}", rank_, why));
  }

  std::string explain(const Call& call) const override {
    check_arguments(call, rank_, size_);
    if (algorithms_for(call.op).empty()) return fmt::format("{}: counted as messages", name_of(call.op));
    return explain_choice(spec_of(call), size_of(call.dtype), links());
  }

  std::vector<CallStats> stats() const override { return stats_; }

 private:
  CollectiveSpec spec_of(const Call& call) const {
    CollectiveSpec spec;
    spec.op = call.op;
    spec.rank = rank_;
    spec.size = size_;
    spec.count = call.count;
    spec.root = call.root;
    spec.shape = {options_.shape};
    return spec;
  }

  GroupLinks links() const {
    GroupLinks links;
    links.widest = Tier::host;
    links.tiers = tiers_;
    return links;
  }

  const AlgorithmRow& row_for(const Call& call, const CollectiveSpec& spec) const {
    int id = algorithm_id_of(call.op, call.algorithm);
    if (id == kAutoAlgorithm) id = preferences_[static_cast<size_t>(call.op)];
    // The fused path sends no messages that could be counted, so its calls are counted as the algorithm that `auto`
    // would choose without it.
    if (id == kAutoAlgorithm || id == kFusedAlgorithm) return choose(spec, size_of(call.dtype), links());
    const AlgorithmRow& row = algorithms()[static_cast<size_t>(id)];
    if (std::string why = row.applies ? row.applies(spec) : ""; !why.empty())
      throw UsageError(fmt::format("{}: algorithm {} {}", name_of(call.op), row.name, why));
    return row;
  }

  void count_schedule(const Call& call) {
    CollectiveSpec spec = spec_of(call);
    const AlgorithmRow& row = row_for(call, spec);
    Schedule schedule = row.build(spec);
    size_t sent = 0, received = 0, messages = 0;
    for (const Action& action : schedule.actions) {
      if (action.type == ActionType::send) {
        sent += action.region.count;
        ++messages;
      } else if (action.type == ActionType::receive || action.type == ActionType::receive_reduce) {
        received += action.region.count;
      }
    }
    count(call, row.name, sent, received, messages, schedule.num_rounds);
  }

  void count_irregular(const Call& call) {
    size_t sent = 0, received = 0, messages = 0;
    for (size_t peer = 0; peer < static_cast<size_t>(size_); ++peer) {
      if (peer == static_cast<size_t>(rank_)) continue;
      sent += call.send_counts[peer];
      received += call.recv_counts[peer];
      messages += call.send_counts[peer] > 0;
    }
    count(call, "pairwise", sent, received, messages, size_ - 1);
  }

  void count(const Call& call, std::string_view algorithm, size_t sent, size_t received, size_t messages, int rounds) {
    CallStats* found = nullptr;
    for (CallStats& stats : stats_)
      if (stats.op == call.op && stats.algorithm == algorithm) found = &stats;
    if (!found) found = &stats_.emplace_back(CallStats{call.op, std::string(algorithm), "fake"});
    size_t unit = size_of(call.dtype);
    found->calls++;
    found->bytes_sent += sent * unit;
    found->bytes_received += received * unit;
    found->messages += messages;
    found->rounds += static_cast<uint64_t>(rounds);
  }

  const int rank_, size_;
  const CommOptions options_;
  const Preferences preferences_;
  Tiers tiers_;
  std::optional<CommError> dead_;
  std::vector<CallStats> stats_;
};

}  // namespace

std::unique_ptr<Communicator> make_fake(int rank, int size, const CommOptions& options, const AlphaBeta& link) {
  if (size < 1 || rank < 0 || rank >= size)
    throw UsageError(fmt::format("fake communicator: got rank {} with size {}; expected 0 <= rank < size", rank, size));
  return std::make_unique<Fake>(rank, size, options, link);
}

}  // namespace esp::comm
