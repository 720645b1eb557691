#include "esp/comm/scheduled_communicator.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/arguments.h"
#include "esp/comm/schedule_file.h"

namespace esp::comm {
namespace {

// Hash of two numbers. Group ids are computed from (parent, number of earlier splits, colour), so that they are equal
// on every member without communication.
uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a + 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The first communicator over the world has group id 0. Every further one gets another id, so that it can exist beside
// the first, or after the first failed. All members create them in the same order, so ids are equal on all ranks.
net::Group with_own_id(const net::World& world, net::Group group) {
  if (group.id == 0)
    if (uint64_t before = world.num_root_groups++; before > 0) group.id = mix(0, before);
  return group;
}

// Id of a user schedule: equal on every rank with the same schedule, never 0. std::hash is equal on all ranks, because
// all ranks of a job run the same build.
uint32_t id_of(const ScheduleFile& file) {
  auto hash = static_cast<uint64_t>(std::hash<std::string>{}(write_schedule(file)));
  return static_cast<uint32_t>(hash ^ hash >> 32) | 1;
}

bool on_one_host(const net::World& world, const net::Group& group) {
  return std::all_of(group.members.begin(), group.members.end(),
                     [&](int member) { return world.same_host(group.members[0], member); });
}

// Limit for waiting on the worker. Started calls have their own deadlines, so this one is practically never reached.
Deadline no_deadline() {
  return Deadline::after(std::chrono::hours(24 * 365));
}

}  // namespace

struct ScheduledCommunicator::StartedCall {
  explicit StartedCall(const Call& from) : call(from) {
    auto keep = [](std::vector<size_t>& own, std::span<const size_t>& borrowed) {
      own.assign(borrowed.begin(), borrowed.end());
      borrowed = own;
    };
    keep(send_counts, call.send_counts);
    keep(send_offsets, call.send_offsets);
    keep(recv_counts, call.recv_counts);
    keep(recv_offsets, call.recv_offsets);
    algorithm = call.algorithm;
    call.algorithm = algorithm;
  }
  StartedCall(const StartedCall&) = delete;

  Call call;
  std::string algorithm;
  std::vector<size_t> send_counts, send_offsets, recv_counts, recv_offsets;
};

ScheduledCommunicator::ScheduledCommunicator(const net::World& world, const net::Group& group,
                                             const CommOptions& options, const Tiers& tiers)
    : world_(world),
      group_(with_own_id(world, group)),
      options_(options),
      preferences_(parse_preferences(options.algorithms)),
      shape_(grid_of_group(world, group, options.shape)),
      timeout_(options.timeout > Duration::zero() ? options.timeout : world.options.timeout),
      flight_(options.flight),
      tiers_(tiers),
      sent_(group.members.size()),
      received_(group.members.size()),
      signalled_(group.members.size()),
      waited_(group.members.size()),
      positions_(world, group_),
      worker_(fmt::format("esp-comm-{}", world.rank)) {
  fused_counter_.fill(-1);
  for (const auto& file : options_.schedules) schedule_ids_.push_back(id_of(*file));
  if (!flight_) {
    obs::FlightOptions record;
    record.rank = world.rank;
    record.world = world.size;
    flight_ = std::make_shared<obs::FlightRecorder>(record);
  }
  if (size() == 1) return;
  transport_ = net::open_transport(options.transport, world, group_);
  executor_ = std::make_unique<Executor>(*transport_, [this] { check_positions(); });
  // A transport that the user selected by name carries all calls. With `auto`, a group on one host uses the fused path.
  if (options.transport == "auto" && !transport_->ordered() && on_one_host(world, group_))
    fused_ = FusedCollectives::open(world, group_, Deadline::after(world.options.start_timeout));
}

ScheduledCommunicator::~ScheduledCommunicator() = default;

Duration ScheduledCommunicator::timeout_of(const Call& call) const {
  return call.timeout > Duration::zero() ? call.timeout : timeout_;
}

int ScheduledCommunicator::algorithm_for(const Call& call) const {
  if (call.algorithm == "auto") return preferences_[static_cast<size_t>(call.op)];
  for (size_t i = 0; i < options_.schedules.size(); ++i)
    if (options_.schedules[i]->op == call.op && options_.schedules[i]->name == call.algorithm)
      return kFileAlgorithm + static_cast<int>(i);
  return algorithm_id_of(call.op, call.algorithm);
}

const ScheduleFile* ScheduledCommunicator::file_for(int algorithm) const {
  return algorithm < kFileAlgorithm ? nullptr
                                    : options_.schedules[static_cast<size_t>(algorithm - kFileAlgorithm)].get();
}

Schedule ScheduledCommunicator::schedule_for(int algorithm, const CollectiveSpec& spec) const {
  if (const ScheduleFile* file = file_for(algorithm))
    return instantiate_validated(*file, spec)[static_cast<size_t>(rank())];
  return algorithms()[static_cast<size_t>(algorithm)].build(spec);
}

bool ScheduledCommunicator::uses_fused(const Call& call, int algorithm) const {
  return fused_ && (algorithm == kAutoAlgorithm || algorithm == kFusedAlgorithm) && fused_->supports(call);
}

CollectiveSpec ScheduledCommunicator::spec_of(const Call& call) const {
  CollectiveSpec spec;
  spec.op = call.op;
  spec.rank = rank();
  spec.size = size();
  spec.count = call.count;
  spec.root = call.root;
  spec.shape = shape_;
  return spec;
}

void ScheduledCommunicator::check_call(const Call& call) const {
  check_arguments(call, rank(), size());
  int algorithm = algorithm_for(call);
  if (algorithm == kFusedAlgorithm && size() > 1 && !uses_fused(call, algorithm)) {
    throw UsageError(
        fmt::format("{}: the fused path {}. Use algorithm \"auto\"", name_of(call.op),
                    fused_ ? "does not support this call" : "needs all ranks on one host and transport auto"));
  }
}

void ScheduledCommunicator::check_applies(const Call& call) const {
  int algorithm = algorithm_for(call);
  if (algorithm == kAutoAlgorithm || algorithm == kFusedAlgorithm || size() == 1) return;
  if (const ScheduleFile* file = file_for(algorithm)) {
    (void)instantiate(*file, spec_of(call));  // throws if the schedule does not fit the call
    return;
  }
  const AlgorithmRow& row = algorithms()[static_cast<size_t>(algorithm)];
  if (!row.applies) return;
  if (std::string why = row.applies(spec_of(call)); !why.empty())
    throw UsageError(fmt::format("{}: algorithm {} {}", name_of(call.op), row.name, why));
}

void ScheduledCommunicator::run(const Call& call) {
  if (worker_.idle()) return execute(call);
  worker_.post([&] { execute(call); }).wait(no_deadline());
}

Work ScheduledCommunicator::start(const Call& call) {
  check_call(call);
  check_applies(call);
  auto started = std::make_shared<StartedCall>(call);
  return worker_.post([this, started] { execute(started->call); });
}

Work ScheduledCommunicator::start_group(std::span<const Call> calls) {
  for (const Call& call : calls) {
    check_call(call);
    check_applies(call);
  }
  auto started = std::make_shared<std::vector<std::unique_ptr<StartedCall>>>();
  for (const Call& call : calls) started->push_back(std::make_unique<StartedCall>(call));
  return worker_.post([this, started] {
    std::vector<Call> own;
    for (const auto& one : *started) own.push_back(one->call);
    execute_group(own);
  });
}

void ScheduledCommunicator::wait_for_worker() const {
  if (!worker_.idle()) worker_.post([] {}).wait(no_deadline());
}

std::unique_ptr<Communicator> ScheduledCommunicator::split(int colour, int key) {
  struct ColourKey {
    int64_t colour, key;
  };
  std::vector<ColourKey> keys(group_.members.size());
  ColourKey mine{colour, key};
  all_gather(&mine, keys.data(), 2, DType::i64);
  uint64_t which = num_splits_++;
  if (colour < 0) return nullptr;
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (keys[static_cast<size_t>(r)].colour == colour) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return keys[static_cast<size_t>(a)].key < keys[static_cast<size_t>(b)].key; });
  net::Group child;
  child.id = mix(mix(group_.id, which), static_cast<uint64_t>(colour));
  for (int r : ranks) {
    if (r == rank()) child.rank = child.size();
    child.members.push_back(group_.members[static_cast<size_t>(r)]);
  }
  CommOptions options = options_;
  options.shape.clear();
  options.flight = flight_;
  return std::make_unique<ScheduledCommunicator>(world_, child, options, tiers_);
}

std::unique_ptr<net::Transport> ScheduledCommunicator::open_transport() {
  const uint64_t which = num_splits_++;
  if (size() == 1) return nullptr;
  net::Group same = group_;
  same.id = mix(mix(group_.id, which), ~uint64_t{0});
  return net::open_transport(options_.transport, world_, same);
}

std::shared_ptr<void> ScheduledCommunicator::allocate(size_t bytes) {
  if (bytes > SIZE_MAX / 2 / static_cast<size_t>(size()))
    throw UsageError(fmt::format("allocate: {} bytes for each of {} ranks do not fit in memory", bytes, size()));
  wait_for_worker();
  if (fused_) {
    std::shared_ptr<void> memory;
    Call barrier;
    run_guarded(barrier, [&] { memory = fused_->allocate(bytes, *deadline_); });
    return memory;
  }
  // Page-aligned, so that the memory can be registered later.
  void* memory = std::aligned_alloc(4096, (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096);
  if (!memory) throw IoError(fmt::format("allocate: out of memory: {} bytes requested", bytes));
  return {memory, std::free};
}

void ScheduledCommunicator::abort(const std::string& why) {
  int me = world_.rank;
  abort_group(CommError(CommError::Kind::aborted, me, fmt::format("rank {} aborted: {}", me, why)));
}

std::string ScheduledCommunicator::explain(const Call& call) const {
  check_call(call);
  check_applies(call);
  wait_for_worker();
  if (size() == 1) return fmt::format("{}: one rank, nothing to send", name_of(call.op));
  int algorithm = algorithm_for(call);
  if (uses_fused(call, algorithm))
    return fmt::format("{}: fused, because all {} ranks are on one host", name_of(call.op), size());
  if (algorithm != kAutoAlgorithm)
    return fmt::format("{}: {}, as requested, over {}", name_of(call.op),
                       algorithm_name(std::min(algorithm, kFileAlgorithm)), transport_->name());
  if (algorithms_for(call.op).empty())
    return fmt::format("{}: one message per direction, over {}", name_of(call.op), transport_->name());
  return explain_choice(spec_of(call), size_of(call.dtype), group_links(world_, group_, tiers_));
}

std::vector<CallStats> ScheduledCommunicator::stats() const {
  wait_for_worker();
  std::vector<CallStats> all;
  for (const CallCounter& c : counters_) {
    bool fused = c.algorithm == kFusedAlgorithm;
    std::string_view algorithm =
        c.algorithm == kAutoAlgorithm ? "direct" : algorithm_name(std::min(c.algorithm, kFileAlgorithm));
    if (const ScheduleFile* file = file_for(c.algorithm)) algorithm = file->name;
    std::string_view transport = fused ? "shm" : transport_ ? transport_->name() : "none";
    all.push_back({c.op, std::string(algorithm), std::string(transport), c.calls, c.bytes_sent, c.bytes_received,
                   c.messages, c.rounds, static_cast<double>(c.ns) * 1e-6});
  }
  return all;
}

}  // namespace esp::comm
