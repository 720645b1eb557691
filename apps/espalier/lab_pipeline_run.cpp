#include "apps/espalier/lab_pipeline_run.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "esp/base/check.h"
#include "esp/comm/communicator.h"
#include "esp/net/inproc/threads.h"
#include "esp/obs/spans.h"
#include "esp/parallel/pp/edges.h"
#include "esp/parallel/pp/partition.h"
#include "esp/parallel/pp/runner.h"
#include "esp/parallel/pp/toy_stage.h"

namespace esp::app {
namespace {

using parallel::ActionKind;
using parallel::PipelineAction;
using parallel::PipelineSchedule;

constexpr Duration kTimeout = std::chrono::seconds(60);

// A toy model's stage whose actions take a fixed time.
class TimedStage final : public parallel::PipelineStage {
 public:
  TimedStage(parallel::ToyStage& stage, const PipelineSchedule& schedule, double unit_ms)
      : stage_(stage), whole_(schedule.backward != parallel::Backward::split), unit_ms_(unit_ms) {
    unit_ms_ /= schedule.shape.chunks;
  }
  parallel::StageTensorShapes input_shape(int chunk, int i) const override { return stage_.input_shape(chunk, i); }
  parallel::StageTensorShapes output_shape(int chunk, int i) const override { return stage_.output_shape(chunk, i); }
  std::span<autograd::Weight* const> weights(int chunk) const override { return stage_.weights(chunk); }
  ForwardResult forward(int chunk, int i, autograd::Tape& tape, const parallel::StageTensors& input) override {
    begun_ = Clock::now();
    return stage_.forward(chunk, i, tape, input);
  }
  void begin_backward(int, int) override { begun_ = Clock::now(); }
  void end_action(const PipelineAction& action) override {
    // A weight-gradient action needs no message, so it begins when the previous action ends.
    const double units = action.kind == ActionKind::backward && whole_ ? 2 : 1;
    const auto time = std::chrono::duration<double, std::milli>(units * unit_ms_);
    std::this_thread::sleep_until(begun_ + std::chrono::duration_cast<Duration>(time));
    begun_ = Clock::now();
  }

 private:
  parallel::ToyStage& stage_;
  const bool whole_;
  double unit_ms_;
  Clock::time_point begun_ = Clock::now();
};

uint64_t bytes_sent(const parallel::StageEdges& edges) {
  uint64_t bytes = 0;
  for (const comm::Communicator* edge : {edges.activations_out, edges.gradients_out})
    if (edge)
      for (const comm::CallStats& stats : edge->stats())
        if (stats.op == comm::Op::send) bytes += stats.bytes_sent;
  return bytes;
}

// Recorded times of one step's actions, in the order of the schedule.
std::vector<parallel::TimedAction> timed(const std::vector<PipelineAction>& actions, const obs::TraceRow& row) {
  std::vector<parallel::TimedAction> all;
  for (const obs::SpanRecord& record : row.records()) {
    if (std::string_view(record.category) != "compute") continue;
    ESP_CHECK(all.size() < actions.size(), "pipeline trace: got more spans than the {} actions of the schedule",
              actions.size());
    all.push_back(
        {actions[all.size()], static_cast<double>(record.begin_ns) * 1e-6, static_cast<double>(record.end_ns) * 1e-6});
  }
  ESP_CHECK(all.size() == actions.size(), "pipeline trace: got {} spans; expected {}, one per action", all.size(),
            actions.size());
  return all;
}

// Makes all times relative to the start of the first action, and computes busy and idle times.
void normalise(parallel::Timeline& timeline) {
  double begin = timeline.stages[0].actions[0].begin, end = begin;
  for (const auto& stage : timeline.stages) {
    begin = std::min(begin, stage.actions.front().begin);
    end = std::max(end, stage.actions.back().end);
  }
  timeline.makespan = end - begin;
  for (auto& stage : timeline.stages) {
    for (auto& action : stage.actions) {
      action.begin -= begin;
      action.end -= begin;
      stage.busy += action.end - action.begin;
    }
    stage.idle = timeline.makespan - stage.busy;
  }
}

}  // namespace

PipelineRun run_pipeline(const PipelineSchedule& schedule, int num_units, double unit_ms) {
  const parallel::ScheduleShape shape = schedule.shape;
  parallel::ToyOptions toy;
  toy.units = num_units;
  toy.rows = 16;
  toy.width = 32;
  toy.hidden = 64;
  toy.dtype = DType::f32;
  const std::vector<int> cuts =
      parallel::linear_partition(std::vector<double>(static_cast<size_t>(num_units), 1), shape.virtual_stages());

  PipelineRun run;
  std::mutex mutex;  // guards `run`, except elements that only one rank writes
  run.timeline.stages.resize(static_cast<size_t>(shape.stages));
  run.peak_live.resize(static_cast<size_t>(shape.stages));
  run.waited_ms.resize(static_cast<size_t>(shape.stages));
  run.message_bytes = static_cast<uint64_t>(toy.rows * toy.width) * size_of(toy.dtype);
  net::run_threads(shape.stages, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = kTimeout;
    auto comm = comm::make_communicator(world, world.world_group(), options);
    const parallel::PipeEdges edges(comm.get(), shape.chunks > 1);
    device::MemoryAccount account;
    device::MemoryPool pool(account);
    device::ThreadPool threads(1);
    const tensor::Context context{{{}, &threads, nullptr}, &pool};
    parallel::ToyStage stage(context, toy, shape, world.rank, cuts);
    TimedStage paced(stage, schedule, unit_ms);
    obs::Tracer tracer(world.rank);
    obs::TraceRow* trace = tracer.add_row("compute");
    const parallel::StagePlan plan = parallel::plan_of(schedule, world.rank);
    parallel::PipelineRunner first(stage, context, edges.stage_edges(), {kTimeout, nullptr});
    parallel::PipelineRunner second(paced, context, edges.stage_edges(), {kTimeout, trace});
    stage.begin_step();
    first.run(plan);  // warm-up: allocates memory and opens connections
    const uint64_t before = bytes_sent(edges.stage_edges());
    stage.begin_step();
    comm->barrier();
    second.run(plan);

    const std::lock_guard lock(mutex);
    const auto here = static_cast<size_t>(world.rank);
    run.timeline.stages[here].actions = timed(schedule.stages[here], *trace);
    run.timeline.stages[here].peak_live = run.peak_live[here] = second.peak_live();
    run.waited_ms[here] = second.exposed_ms();
    run.boundary_bytes += bytes_sent(edges.stage_edges()) - before;
    for (parallel::ToyStage::ToyWeight& named : stage.all()) {
      const auto* data = named.weight.grad.as<std::byte>();
      run.gradients[{named.unit, named.part}].assign(data, data + named.weight.grad.bytes());
    }
  });
  normalise(run.timeline);
  return run;
}

}  // namespace esp::app
