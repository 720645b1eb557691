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

// One stage of one class of equal replicas.
struct Device {
  int copy = 0, stage = 0, folded = 1;
  double slow = 1;
  StreamId compute = 0, summing = 0, host = 0;
  LinkId inside_out = kNone, inside_in = kNone, across_out = kNone, across_in = kNone;
  RouteId processor = kNone;
  uint32_t memory = 0;
  TaskId first_compute = kNone, last_compute = kNone, updated = kNone;
  std::vector<int> micro_batches;  // of each chunk
  std::vector<TaskId> summed;      // the last of each chunk's sums
};

class Step {
 public:
  Step(const StepInput& input, Json* trace)
      : input_(input), shape_(input.schedule.shape), trace_(trace), engine_(trace), timeline_(trace) {
    const int pieces = input.placement == PiecePlacement::both ? shape_.stages : shape_.pieces();
    ESP_CHECK(input.pieces.size() == static_cast<size_t>(pieces), "{} times for {} pieces", input.pieces.size(),
              pieces);
    ESP_CHECK(input.stages.size() == static_cast<size_t>(shape_.stages));
    fold();
  }

  StepSimulation run() {
    gather();
    compute();
    receive();
    sum();
    update();
    StepSimulation result;
    result.step_s = engine_.run();
    if (!input_.together) result.step_s = longest_span();
    report(result);
    return result;
  }

 private:
  static constexpr size_t index(int i) { return static_cast<size_t>(i); }
  Device& at(size_t copies, int stage) { return devices_[copies * index(shape_.stages) + index(stage)]; }
  const StageInput& of(const Device& device) const { return input_.stages[index(device.stage)]; }

  // Replicas with equally slow stages form one class.
  void fold() {
    std::map<std::vector<double>, std::pair<int, int>> seen;  // slowness → first replica, count
    const std::vector<double> even(index(shape_.stages), 1.0);
    for (int copy = 0; copy < input_.copies; ++copy) {
      const std::vector<double>& slow = input_.slowdown.empty() ? even : input_.slowdown[index(copy)];
      auto [at, fresh] = seen.try_emplace(slow, copy, 0);
      ++at->second.second;
      if (input_.slowdown.empty()) {
        at->second.second = input_.copies;
        break;
      }
    }
    for (const auto& [slow, who] : seen) {
      for (int stage = 0; stage < shape_.stages; ++stage) add_device(who.first, stage, who.second, slow[index(stage)]);
      ++num_classes_;
    }
    channels_.resize(num_classes_ * index(shape_.stages) * kChannels);
    for (StreamId& channel : channels_) channel = engine_.add_stream();
  }

  void add_device(int copy, int stage, int folded, double slow) {
    Device device;
    device.copy = copy;
    device.stage = stage;
    device.folded = folded;
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
      if (cores_ == kNone) cores_ = engine_.add_link(input_.cores);
      device.processor = engine_.add_route({cores_, engine_.add_link(input_.ranks_of_device * input_.threads_of_rank)});
    }
    device.micro_batches.assign(index(shape_.chunks), 0);
    for (const parallel::PipelineAction& action : input_.schedule.stages[index(stage)])
      device.micro_batches[index(action.chunk)] += action.kind == ActionKind::forward ? 1 : 0;
    device.memory = engine_.add_place();
    engine_.takes(engine_.join(), device.memory, input_.stages[index(stage)].held_bytes);
    timeline_.add_row(copy, stage);
    devices_.push_back(std::move(device));
  }

  RouteId route(const Device& from, const Device& to, bool across) {
    std::vector<LinkId> links;
    for (const LinkId link : {across ? from.across_out : from.inside_out, across ? to.across_in : to.inside_in})
      if (link != kNone) links.push_back(link);
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

  // The action that completes a chunk's gradients: the last of its kind.
  bool completes(const Device& device, const parallel::PipelineAction& action) const {
    const ActionKind kind =
        input_.schedule.backward == parallel::Backward::split ? ActionKind::weights : ActionKind::backward;
    return action.kind == kind && action.micro_batch == device.micro_batches[index(action.chunk)] - 1;
  }

  // A collective of all replicas: begins when the last of them is ready, at the rate of each port.
  std::vector<TaskId> together(int stage, const PortCall& wire, std::span<const TaskId> ready, const char* name) {
    const TaskId all = engine_.join();
    for (const TaskId one : ready)
      if (one != kNone) engine_.after(all, one);
    std::vector<TaskId> parts;
    for (size_t c = 0; c < num_classes_; ++c) {
      Device& device = at(c, stage);
      const TaskId part = engine_.transfer(route(device, device, wire.across), wire.alpha_s, wire.bytes);
      engine_.on(part, device.summing);
      engine_.after(part, all);
      timeline_.name(part, device.copy, stage, TimelineRow::sums, name);
      parts.push_back(part);
    }
    return parts;
  }

  void gather() {
    const std::vector<TaskId> now(num_classes_, kNone);
    for (int stage = 0; stage < shape_.stages; ++stage)
      for (int chunk = 0; chunk < shape_.chunks; ++chunk)
        for (const PortCall& wire : input_.stages[index(stage)].gathers)
          gathered_[{stage, chunk}].push_back(together(stage, wire, now, "gather"));
  }

  void compute() {
    for (size_t c = 0; c < num_classes_; ++c)
      for (int stage = 0; stage < shape_.stages; ++stage) {
        Device& device = at(c, stage);
        for (const parallel::PipelineAction& action : input_.schedule.stages[index(stage)]) {
          act(c, device, action);
          const auto to = goes_to(input_.placement, shape_, stage, action);
          if (to && to->stage != stage) send(c, device, action, *to);
        }
      }
  }

  // Seconds of compute: on a machine whose cores all devices share, a flow of core-seconds, limited by the threads of
  // its ranks.
  TaskId on_processor(const Device& device, double seconds) {
    if (input_.cores == 0) return engine_.compute(device.compute, seconds);
    const double max_cores = input_.ranks_of_device * input_.threads_of_rank;
    const TaskId task = engine_.transfer(device.processor, 0, seconds * max_cores);
    engine_.on(task, device.compute);
    return task;
  }

  double beside(const PortCall& wire, double kernels) const {
    const double rate = wire.across ? input_.across_bandwidth : input_.inside_bandwidth;
    return input_.beside * std::min(kernels, wire.alpha_s + (rate > 0 ? wire.bytes / rate : 0));
  }

  // The first forward of a chunk has as many parts as its gathers, the last backward as its buckets.
  void act(size_t c, Device& device, const parallel::PipelineAction& action) {
    const double all = seconds(device, action);
    const auto& gathers = gathered_[{device.stage, action.chunk}];
    const bool first = action.kind == ActionKind::forward && action.micro_batch == 0 && !gathers.empty();
    const size_t sums = completes(device, action) ? of(device).sums.size() : 0;
    const size_t parts = first ? gathers.size() : std::max<size_t>(1, input_.overlap_sums ? sums : 1);
    TaskId begin = kNone, end = kNone;
    for (size_t i = 0; i < parts; ++i) {
      double part = all / static_cast<double>(parts);
      if (first) part += beside(of(device).gathers[i], part);
      if (sums > 0 && parts == sums) part += beside(of(device).sums[i], part);
      end = on_processor(device, part);
      if (begin == kNone) begin = end;
      if (first) engine_.after(end, gathers[i][c]);
      timeline_.name(end, device.copy, device.stage, TimelineRow::compute, action, shape_.chunks);
      if (sums > 0 && parts == sums) ready_[{device.stage, action.chunk, i}].push_back(end);
    }
    if (sums > 0 && parts != sums)
      for (size_t i = 0; i < sums; ++i) ready_[{device.stage, action.chunk, i}].push_back(end);
    starts_[{c, device.stage, action.kind, action.chunk, action.micro_batch}] = begin;
    if (device.first_compute == kNone) device.first_compute = begin;
    device.last_compute = end;
    remember(device, action, begin, end);
  }

  void remember(const Device& device, const parallel::PipelineAction& action, TaskId begin, TaskId end) {
    const ActionKind last =
        input_.schedule.backward == parallel::Backward::split ? ActionKind::weights : ActionKind::backward;
    if (action.kind == ActionKind::forward) engine_.takes(begin, device.memory, of(device).activation_bytes);
    if (action.kind == last) engine_.gives(end, device.memory, of(device).activation_bytes);
  }

  void send(size_t c, Device& device, const parallel::PipelineAction& action, const parallel::StageChunk& to) {
    Device& there = at(c, to.stage);
    const PortCall& wire = input_.boundary;
    const TaskId message = engine_.transfer(route(device, there, wire.across), wire.alpha_s, wire.bytes);
    engine_.after(message, device.last_compute);
    // Activations and gradients to either neighbour, each direction in order.
    const size_t channel = (action.kind == ActionKind::forward ? 0 : 2) + (to.stage > device.stage ? 0 : 1);
    engine_.on(message, channels_[(c * index(shape_.stages) + index(device.stage)) * kChannels + channel]);
    if (!input_.overlap_sends) engine_.on(message, device.compute);
    timeline_.name(message, device.copy, device.stage, TimelineRow::sends, action, shape_.chunks);
    sent_.push_back({c, to.stage, action.kind, to.chunk, action.micro_batch, message});
  }

  void receive() {
    for (const Sent& one : sent_) {
      const auto start = starts_.find({one.copies, one.stage, one.kind, one.chunk, one.micro_batch});
      ESP_CHECK(start != starts_.end(), "a message without a receiving action");
      engine_.after(start->second, one.message);
    }
  }

  // In the order in which devices fill them: chunks from the last one down.
  void sum() {
    for (int stage = 0; stage < shape_.stages; ++stage)
      for (int chunk = shape_.chunks - 1; chunk >= 0; --chunk)
        for (size_t i = 0; i < input_.stages[index(stage)].sums.size(); ++i) {
          const auto parts = together(stage, input_.stages[index(stage)].sums[i], ready_[{stage, chunk, i}], "sum");
          for (size_t c = 0; c < num_classes_; ++c) at(c, stage).summed.push_back(parts[c]);
        }
  }

  // The norm covers all gradients: no update before every sum is complete, unless its check is delayed.
  void update() {
    const TaskId all = engine_.join();
    for (Device& device : devices_) {
      const TaskId ready = input_.together ? all : engine_.join();
      engine_.after(ready, device.last_compute);
      for (const TaskId one : device.summed) engine_.after(ready, one);
      device.updated = on_processor(device, of(device).update_s + input_.step_s);
      engine_.after(device.updated, ready);
      if (of(device).offload_s > 0) {
        const TaskId moved = engine_.compute(device.host, of(device).offload_s);
        engine_.after(moved, ready);
        engine_.after(device.updated, moved);
        timeline_.name(moved, device.copy, device.stage, TimelineRow::sends, "offload");
      }
      timeline_.name(device.updated, device.copy, device.stage, TimelineRow::compute, "update");
    }
  }

  // Consecutive steps without a barrier: the time of a stage from its begin, and the dependencies of its first action
  // (gathered weights).
  double longest_span() const {
    double most = 0, lead = 0;
    for (const Device& device : devices_) {
      most = std::max(most, engine_.end_of(device.updated) - engine_.begin_of(device.first_compute));
      if (device.stage == 0) lead = std::max(lead, engine_.begin_of(device.first_compute));
    }
    return most + lead;
  }

  void report(StepSimulation& result) {
    double idle = 0, busy = 0;
    std::vector<double> computed_by(num_classes_, 0.0);  // when a replica's last stage has finished computing
    for (size_t i = 0; i < devices_.size(); ++i) {
      double& end = computed_by[i / index(shape_.stages)];
      end = std::max(end, engine_.end_of(devices_[i].last_compute));
    }
    for (Device& device : devices_) {
      DeviceUse use{device.copy, device.stage, device.folded};
      const double update = of(device).update_s + input_.step_s;
      double computed = computed_by[static_cast<size_t>(&device - devices_.data()) / index(shape_.stages)];
      if (!input_.together) computed = engine_.end_of(device.last_compute) - engine_.begin_of(device.first_compute);
      use.compute_s = engine_.busy_of(device.compute) - update;
      if (!input_.overlap_sends) use.compute_s = pure_compute(device);
      use.waiting_s = computed - use.compute_s;
      use.after_s = std::max(0.0, result.step_s - computed - update);
      use.summing_s = engine_.busy_of(device.summing);
      use.offload_s = engine_.busy_of(device.host);
      use.peak_bytes = engine_.peak_of(device.memory);
      const size_t first_channel = static_cast<size_t>(&device - devices_.data()) * kChannels;
      for (size_t i = 0; i < kChannels; ++i) use.sending_s += engine_.busy_of(channels_[first_channel + i]);
      idle += use.waiting_s * device.folded;
      busy += use.compute_s * device.folded;
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

  struct Sent {
    size_t copies;
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
  std::vector<Device> devices_;  // by class of replicas, then stage
  size_t num_classes_ = 0;
  LinkId cores_ = kNone;  // of the shared machine
  static constexpr size_t kChannels = 4;
  std::vector<StreamId> channels_;                                            // by class, sender, kind and direction
  std::map<std::pair<int, int>, std::vector<std::vector<TaskId>>> gathered_;  // by stage and chunk: part, class
  std::map<std::tuple<int, int, size_t>, std::vector<TaskId>> ready_;         // by stage, chunk and bucket
  std::map<ActionKey, TaskId> starts_;
  std::vector<Sent> sent_;
};

}  // namespace

StepSimulation simulate_step(const StepInput& input, Json* trace) {
  return Step(input, trace).run();
}

}  // namespace esp::plan
