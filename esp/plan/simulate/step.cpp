#include "esp/plan/simulate/step.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/plan/simulate/event_engine.h"
#include "esp/plan/simulate/timeline.h"

namespace esp::plan {
namespace {

using parallel::ActionKind;

// One stage of a class of equal replicas. `num_folded`: number of replicas in the class; `slow`: factor on the compute
// times.
struct Device {
  int replica = 0, stage = 0, num_folded = 1;
  double slow = 1;
  StreamId compute = 0, summing = 0, host = 0;
  LinkId inside_out = kNoId, inside_in = kNoId, across_out = kNoId, across_in = kNoId;
  RouteId processor = kNoId;
  uint32_t memory = 0;
  TaskId first_compute = kNoId, last_compute = kNoId, updated = kNoId;
  std::vector<int> micro_batches;  // number of micro-batches of each chunk
  std::vector<TaskId> summed;      // tasks of the gradient sums of this device
};

class StepSimulator {
 public:
  StepSimulator(const StepInput& input, Json* trace)
      : input_(input), shape_(input.schedule.shape), trace_(trace), engine_(trace), timeline_(trace) {
    const int pieces = input.placement == PiecePlacement::bidirectional ? shape_.stages : shape_.virtual_stages();
    ESP_CHECK(input.pieces.size() == static_cast<size_t>(pieces),
              "step simulation: got times of {} pieces; expected {}", input.pieces.size(), pieces);
    ESP_CHECK(input.stages.size() == static_cast<size_t>(shape_.stages),
              "step simulation: got inputs of {} stages; expected {}", input.stages.size(), shape_.stages);
    add_devices();
  }

  StepSimulation run() {
    gather();
    compute();
    receive();
    sum();
    update();
    StepSimulation result;
    result.step_s = engine_.run();
    if (!input_.synchronised) result.step_s = longest_span();
    report(result);
    return result;
  }

 private:
  static constexpr size_t index(int i) { return static_cast<size_t>(i); }
  Device& at(size_t replica_class, int stage) { return devices_[replica_class * index(shape_.stages) + index(stage)]; }
  const StageInput& of(const Device& device) const { return input_.stages[index(device.stage)]; }

  // Replicas with equal slowdowns form one class. Each class is simulated once.
  void add_devices() {
    // key: slowdown by stage; value: (first replica, number of replicas)
    std::map<std::vector<double>, std::pair<int, int>> seen;
    const std::vector<double> even(index(shape_.stages), 1.0);
    for (int replica = 0; replica < input_.num_replicas; ++replica) {
      const std::vector<double>& slow = input_.slowdown.empty() ? even : input_.slowdown[index(replica)];
      auto [at, fresh] = seen.try_emplace(slow, replica, 0);
      ++at->second.second;
      if (input_.slowdown.empty()) {
        at->second.second = input_.num_replicas;
        break;
      }
    }
    for (const auto& [slow, group] : seen) {
      for (int stage = 0; stage < shape_.stages; ++stage)
        add_device(group.first, stage, group.second, slow[index(stage)]);
      ++num_classes_;
    }
    channels_.resize(num_classes_ * index(shape_.stages) * kChannels);
    for (StreamId& channel : channels_) channel = engine_.add_stream();
  }

  void add_device(int replica, int stage, int num_folded, double slow) {
    Device device;
    device.replica = replica;
    device.stage = stage;
    device.num_folded = num_folded;
    device.slow = slow;
    device.compute = engine_.add_stream();
    device.summing = engine_.add_stream();
    device.host = engine_.add_stream();
    if (input_.inside_bandwidth > 0) {
      device.inside_out = engine_.add_link(input_.inside_bandwidth);
      device.inside_in = engine_.add_link(input_.inside_bandwidth);
    }
    if (input_.across_bandwidth > 0) {
      device.across_out = engine_.add_link(input_.across_bandwidth);
      device.across_in = engine_.add_link(input_.across_bandwidth);
    }
    if (input_.cores > 0) {
      if (cores_ == kNoId) cores_ = engine_.add_link(input_.cores);
      device.processor = engine_.add_route({cores_, engine_.add_link(input_.ranks_of_device * input_.threads_of_rank)});
    }
    device.micro_batches.assign(index(shape_.chunks), 0);
    for (const parallel::PipelineAction& action : input_.schedule.stages[index(stage)])
      device.micro_batches[index(action.chunk)] += action.kind == ActionKind::forward ? 1 : 0;
    device.memory = engine_.add_memory();
    engine_.allocate(engine_.join(), device.memory, input_.stages[index(stage)].held_bytes);
    timeline_.add_row(replica, stage);
    devices_.push_back(std::move(device));
  }

  RouteId route(const Device& from, const Device& to, bool across) {
    std::vector<LinkId> links;
    for (const LinkId link : {across ? from.across_out : from.inside_out, across ? to.across_in : to.inside_in})
      if (link != kNoId) links.push_back(link);
    return engine_.add_route(std::move(links));
  }

  double seconds(const Device& device, const parallel::PipelineAction& action) const {
    const StageTime& t = input_.pieces[index(piece_at(input_.placement, shape_, device.stage, action.chunk))];
    double s = t.weights;
    if (action.kind == ActionKind::forward) s = t.forward;
    if (action.kind == ActionKind::backward)
      s = input_.schedule.backward == parallel::Backward::split ? t.backward : t.backward + t.weights;
    return s * device.slow;
  }

  // Whether this action completes the gradients of its chunk, that is, computes the weight gradients of the last
  // micro-batch.
  bool completes_gradients(const Device& device, const parallel::PipelineAction& action) const {
    const ActionKind kind =
        input_.schedule.backward == parallel::Backward::split ? ActionKind::weights : ActionKind::backward;
    return action.kind == kind && action.micro_batch == device.micro_batches[index(action.chunk)] - 1;
  }

  // Adds a collective over all replicas of a stage. It begins when the last replica is ready. Each replica transfers at
  // the rate of its port. Returns one task per class.
  std::vector<TaskId> replica_collective(int stage, const PortCall& wire, std::span<const TaskId> ready,
                                         const char* name) {
    const TaskId all = engine_.join();
    for (const TaskId one : ready)
      if (one != kNoId) engine_.add_dependency(all, one);
    std::vector<TaskId> parts;
    for (size_t c = 0; c < num_classes_; ++c) {
      Device& device = at(c, stage);
      const TaskId part = engine_.transfer(route(device, device, wire.across), wire.alpha_s, wire.bytes);
      engine_.run_on(part, device.summing);
      engine_.add_dependency(part, all);
      timeline_.name(part, device.replica, stage, TimelineRow::sums, name);
      parts.push_back(part);
    }
    return parts;
  }

  void gather() {
    const std::vector<TaskId> now(num_classes_, kNoId);
    for (int stage = 0; stage < shape_.stages; ++stage)
      for (int chunk = 0; chunk < shape_.chunks; ++chunk)
        for (const PortCall& wire : input_.stages[index(stage)].gathers)
          gathered_[{stage, chunk}].push_back(replica_collective(stage, wire, now, "gather"));
  }

  void compute() {
    for (size_t c = 0; c < num_classes_; ++c)
      for (int stage = 0; stage < shape_.stages; ++stage) {
        Device& device = at(c, stage);
        for (const parallel::PipelineAction& action : input_.schedule.stages[index(stage)]) {
          add_action(c, device, action);
          const auto to = consumer_of(input_.placement, shape_, stage, action);
          if (to && to->stage != stage) send(c, device, action, *to);
        }
      }
  }

  // Adds `seconds` of compute. If all devices share the cores of one machine, the compute is a flow of core-seconds
  // whose rate is at most the number of threads of the device's ranks.
  TaskId add_compute(const Device& device, double seconds) {
    if (input_.cores == 0) return engine_.compute(device.compute, seconds);
    const double max_cores = input_.ranks_of_device * input_.threads_of_rank;
    const TaskId task = engine_.transfer(device.processor, 0, seconds * max_cores);
    engine_.run_on(task, device.compute);
    return task;
  }

  double slowdown_s(const PortCall& wire, double kernels) const {
    const double rate = wire.across ? input_.across_bandwidth : input_.inside_bandwidth;
    return input_.overlap_slowdown * std::min(kernels, wire.alpha_s + (rate > 0 ? wire.bytes / rate : 0));
  }

  // Adds the compute of an action. The first forward of a chunk has one part per weight gather; the backward that
  // completes its gradients has one part per gradient bucket.
  void add_action(size_t c, Device& device, const parallel::PipelineAction& action) {
    const double all = seconds(device, action);
    const auto& gathers = gathered_[{device.stage, action.chunk}];
    const bool first = action.kind == ActionKind::forward && action.micro_batch == 0 && !gathers.empty();
    const size_t sums = completes_gradients(device, action) ? of(device).sums.size() : 0;
    const size_t parts = first ? gathers.size() : std::max<size_t>(1, input_.overlap_sums ? sums : 1);
    TaskId begin = kNoId, end = kNoId;
    for (size_t i = 0; i < parts; ++i) {
      double part = all / static_cast<double>(parts);
      if (first) part += slowdown_s(of(device).gathers[i], part);
      if (sums > 0 && parts == sums) part += slowdown_s(of(device).sums[i], part);
      end = add_compute(device, part);
      if (begin == kNoId) begin = end;
      if (first) engine_.add_dependency(end, gathers[i][c]);
      timeline_.name(end, device.replica, device.stage, TimelineRow::compute, action, shape_.chunks);
      if (sums > 0 && parts == sums) ready_[{device.stage, action.chunk, i}].push_back(end);
    }
    if (sums > 0 && parts != sums)
      for (size_t i = 0; i < sums; ++i) ready_[{device.stage, action.chunk, i}].push_back(end);
    starts_[{c, device.stage, action.kind, action.chunk, action.micro_batch}] = begin;
    if (device.first_compute == kNoId) device.first_compute = begin;
    device.last_compute = end;
    track_activations(device, action, begin, end);
  }

  void track_activations(const Device& device, const parallel::PipelineAction& action, TaskId begin, TaskId end) {
    const ActionKind last =
        input_.schedule.backward == parallel::Backward::split ? ActionKind::weights : ActionKind::backward;
    if (action.kind == ActionKind::forward) engine_.allocate(begin, device.memory, of(device).activation_bytes);
    if (action.kind == last) engine_.free(end, device.memory, of(device).activation_bytes);
  }

  void send(size_t c, Device& device, const parallel::PipelineAction& action, const parallel::StageChunk& to) {
    Device& there = at(c, to.stage);
    const PortCall& wire = input_.boundary;
    const TaskId message = engine_.transfer(route(device, there, wire.across), wire.alpha_s, wire.bytes);
    engine_.add_dependency(message, device.last_compute);
    // A stage has four channels: activations and gradients, each to the next and to the previous stage. A channel sends
    // in order.
    const size_t channel = (action.kind == ActionKind::forward ? 0 : 2) + (to.stage > device.stage ? 0 : 1);
    engine_.run_on(message, channels_[(c * index(shape_.stages) + index(device.stage)) * kChannels + channel]);
    if (!input_.overlap_sends) engine_.run_on(message, device.compute);
    timeline_.name(message, device.replica, device.stage, TimelineRow::sends, action, shape_.chunks);
    sent_.push_back({c, to.stage, action.kind, to.chunk, action.micro_batch, message});
  }

  void receive() {
    for (const SentMessage& one : sent_) {
      const auto start = starts_.find({one.replica_class, one.stage, one.kind, one.chunk, one.micro_batch});
      ESP_CHECK(start != starts_.end(), "step simulation: stage {} gets a message that none of its actions needs",
                one.stage);
      engine_.add_dependency(start->second, one.message);
    }
  }

  // Adds the gradient sums in the order in which buckets become full: from the last chunk to the first.
  void sum() {
    for (int stage = 0; stage < shape_.stages; ++stage)
      for (int chunk = shape_.chunks - 1; chunk >= 0; --chunk)
        for (size_t i = 0; i < input_.stages[index(stage)].sums.size(); ++i) {
          const auto parts =
              replica_collective(stage, input_.stages[index(stage)].sums[i], ready_[{stage, chunk, i}], "sum");
          for (size_t c = 0; c < num_classes_; ++c) at(c, stage).summed.push_back(parts[c]);
        }
  }

  // The gradient norm needs all gradients. So each device updates only after every sum of every device, unless the
  // check of the norm is delayed.
  void update() {
    const TaskId all = engine_.join();
    for (Device& device : devices_) {
      const TaskId ready = input_.synchronised ? all : engine_.join();
      engine_.add_dependency(ready, device.last_compute);
      for (const TaskId one : device.summed) engine_.add_dependency(ready, one);
      device.updated = add_compute(device, of(device).update_s + input_.step_s);
      engine_.add_dependency(device.updated, ready);
      if (of(device).offload_s > 0) {
        const TaskId moved = engine_.compute(device.host, of(device).offload_s);
        engine_.add_dependency(moved, ready);
        engine_.add_dependency(device.updated, moved);
        timeline_.name(moved, device.replica, device.stage, TimelineRow::sends, "offload");
      }
      timeline_.name(device.updated, device.replica, device.stage, TimelineRow::compute, "update");
    }
  }

  // Time of a step without a barrier between steps: the longest time from a stage's first action to its update, plus
  // the time of the weight gathers before the first action.
  double longest_span() const {
    double most = 0, lead = 0;
    for (const Device& device : devices_) {
      most = std::max(most, engine_.end_time(device.updated) - engine_.begin_time(device.first_compute));
      if (device.stage == 0) lead = std::max(lead, engine_.begin_time(device.first_compute));
    }
    return most + lead;
  }

  void report(StepSimulation& result) {
    double idle = 0, busy = 0;
    std::vector<double> computed_by(num_classes_, 0.0);  // for each class: end of the last compute action on any stage
    for (size_t i = 0; i < devices_.size(); ++i) {
      double& end = computed_by[i / index(shape_.stages)];
      end = std::max(end, engine_.end_time(devices_[i].last_compute));
    }
    for (Device& device : devices_) {
      DeviceUse use{device.replica, device.stage, device.num_folded};
      const double update = of(device).update_s + input_.step_s;
      double computed = computed_by[static_cast<size_t>(&device - devices_.data()) / index(shape_.stages)];
      if (!input_.synchronised)
        computed = engine_.end_time(device.last_compute) - engine_.begin_time(device.first_compute);
      use.compute_s = engine_.busy_time(device.compute) - update;
      if (!input_.overlap_sends) use.compute_s = pure_compute(device);
      use.waiting_s = computed - use.compute_s;
      use.after_s = std::max(0.0, result.step_s - computed - update);
      use.summing_s = engine_.busy_time(device.summing);
      use.offload_s = engine_.busy_time(device.host);
      use.peak_bytes = engine_.peak_bytes_of(device.memory);
      const size_t first_channel = static_cast<size_t>(&device - devices_.data()) * kChannels;
      for (size_t i = 0; i < kChannels; ++i) use.sending_s += engine_.busy_time(channels_[first_channel + i]);
      idle += use.waiting_s * device.num_folded;
      busy += use.compute_s * device.num_folded;
      if (use.compute_s > result.compute_s) {
        result.compute_s = use.compute_s;
        result.bubble_s = use.waiting_s;
        result.exposed_s = use.after_s;
        result.update_s = update;
      }
      result.devices.push_back(use);
    }
    result.bubble = busy > 0 ? idle / busy : 0;
    result.events = engine_.num_events();
    result.tasks = engine_.num_tasks();
    if (trace_) *trace_ = timeline_.trace(engine_);
  }

  double pure_compute(const Device& device) const {
    double sum = 0;
    for (const parallel::PipelineAction& action : input_.schedule.stages[index(device.stage)])
      sum += seconds(device, action);
    return sum;
  }

  struct SentMessage {
    size_t replica_class;
    int stage;
    ActionKind kind;
    int chunk, micro_batch;
    TaskId message;
  };
  using ActionKey = std::tuple<size_t, int, ActionKind, int, int>;

  const StepInput& input_;
  const parallel::ScheduleShape shape_;
  Json* const trace_;
  EventEngine engine_;
  StepTimeline timeline_;
  std::vector<Device> devices_;  // sorted by class of replicas, then by stage
  size_t num_classes_ = 0;
  LinkId cores_ = kNoId;  // link that models the cores of a shared machine
  static constexpr size_t kChannels = 4;
  std::vector<StreamId> channels_;  // by class, sending stage, kind and direction
  // key: stage, chunk; value: [weight gather][class]
  std::map<std::pair<int, int>, std::vector<std::vector<TaskId>>> gathered_;
  // key: stage, chunk, bucket; value: tasks that complete the bucket
  std::map<std::tuple<int, int, size_t>, std::vector<TaskId>> ready_;
  std::map<ActionKey, TaskId> starts_;
  std::vector<SentMessage> sent_;
};

}  // namespace

StepSimulation simulate_step(const StepInput& input, Json* trace) {
  return StepSimulator(input, trace).run();
}

}  // namespace esp::plan
