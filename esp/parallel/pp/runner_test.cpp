// Runs pipeline stages as threads of this process. The results of every schedule must be bit-identical to a single
// process that runs the micro-batches one by one. The number of live activations and the bytes sent must match the
// table in schedules.cpp.
#include "esp/parallel/pp/runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>

#include "esp/base/error.h"
#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"
#include "esp/parallel/pp/defer_ready.h"
#include "esp/parallel/pp/edges.h"
#include "esp/parallel/pp/partition.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/parallel/pp/toy_stage.h"
#include "esp/parallel/pp/validate.h"

namespace esp::parallel {
namespace {

using device::MemoryCategory;

struct Memory {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
};

using Gradients = std::map<std::pair<int, int>, std::vector<std::byte>>;  // key: unit and part

void collect(ToyStage& stage, Gradients& into) {
  for (ToyStage::ToyWeight& weight : stage.all()) {
    const auto* data = weight.weight.grad.as<std::byte>();
    into[{weight.unit, weight.part}].assign(data, data + weight.weight.grad.bytes());
  }
}

std::vector<int> cuts_of(const ToyOptions& toy, const ScheduleShape& shape) {
  return linear_partition(std::vector<double>(static_cast<size_t>(toy.units), 1.0), shape.virtual_stages());
}

// Reference: one process, one tape, no runner.
struct SingleProcess {
  Gradients gradients;
  double loss = 0;

  SingleProcess(const ToyOptions& toy, int micro_batches) {
    Memory memory;
    autograd::Tape tape(memory.context);
    ToyStage stage(memory.context, toy, {1, 1, micro_batches}, 0, {0, toy.units});
    stage.begin_step();
    for (int i = 0; i < micro_batches; ++i) {
      autograd::backward(tape, stage.forward(0, i, tape, {}).loss);
      tape.clear();
    }
    loss = stage.loss();
    collect(stage, gradients);
  }
};

// What the tests observe about one stage.
struct StageObservation {
  int rank = 0;
  Memory& memory;
  ToyStage& stage;
  PipelineRunner& runner;
  StageEdges edges;
};

// Runs `steps` steps of the schedule with one thread per stage; each thread calls `look` after every step.
void run_stages(const PipelineSchedule& schedule, const ToyOptions& toy, int steps,
                const std::function<void(int step, const StageObservation&)>& look, RunnerOptions options = {}) {
  validate(schedule);
  options.timeout = std::chrono::seconds(60);
  net::run_threads(schedule.shape.stages, [&](net::World& world) {
    auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
    const PipeEdges edges(comm.get(), schedule.shape.chunks > 1);
    Memory memory;
    ToyStage stage(memory.context, toy, schedule.shape, world.rank, cuts_of(toy, schedule.shape));
    PipelineRunner runner(stage, memory.context, edges.stage_edges(), options);
    const StagePlan plan = plan_of(schedule, world.rank);
    for (int step = 0; step < steps; ++step) {
      stage.begin_step();
      runner.run(plan);
      look(step, {world.rank, memory, stage, runner, edges.stage_edges()});
    }
  });
}

ToyOptions toy_for(const ScheduleShape& shape) {
  ToyOptions toy;
  toy.units = shape.virtual_stages() + 1;  // virtual stages of unequal size
  toy.uneven = true;
  return toy;
}

void expect_as_alone(const PipelineSchedule& schedule, const ToyOptions& toy) {
  const auto [P, v, m] = schedule.shape;
  SCOPED_TRACE(testing::Message() << schedule.name << " P=" << P << " v=" << v << " m=" << m);
  const SingleProcess alone(toy, m);
  std::mutex mutex;
  Gradients gradients;
  double loss = 0;
  std::vector<uint64_t> reserved(static_cast<size_t>(P));
  run_stages(schedule, toy, 3, [&](int step, const StageObservation& seen) {
    const std::lock_guard lock(mutex);
    for (ToyStage::ToyWeight& weight : seen.stage.all()) {
      EXPECT_EQ(weight.num_ready, 1);
      EXPECT_EQ(weight.weight.pending, 0);
    }
    EXPECT_EQ(seen.runner.peak_live(), peak_live(schedule, seen.rank));
    uint64_t& bytes = reserved[static_cast<size_t>(seen.rank)];
    if (step == 0) bytes = seen.memory.pool.reserved_bytes();
    EXPECT_EQ(seen.memory.pool.reserved_bytes(), bytes);
    EXPECT_EQ(seen.memory.account.use(MemoryCategory::activation).current, 0u);
    EXPECT_EQ(seen.memory.account.use(MemoryCategory::buffer).current, 0u);
    if (step < 2) return;
    collect(seen.stage, gradients);
    loss += seen.stage.loss();
  });
  EXPECT_EQ(loss, alone.loss);
  EXPECT_TRUE(gradients == alone.gradients);
}

TEST(PipelineRunner, EveryScheduleMatchesOneProcessBitForBit) {
  for (const ScheduleRow& row : schedules())
    for (int P : {1, 2, 3, 4})
      for (int m : {1, 3, 4, 6})
        for (int v : {1, 2, 3}) {
          const ScheduleShape shape{P, v, m};
          if ((v > 1 && !row.chunked) || (row.chunked && m % P != 0)) continue;
          expect_as_alone(make_schedule(row.name, shape), toy_for(shape));
        }
}

TEST(PipelineRunner, SendsEncoderOutputWithResidualStream) {
  for (const char* name : {"1f1b", "interleaved", "zb-h1"}) {
    const ScheduleShape shape{3, std::string(name) == "interleaved" ? 2 : 1, 3};
    ToyOptions toy = toy_for(shape);
    toy.memory = true;
    expect_as_alone(make_schedule(name, shape), toy);
  }
}

// Measures, after every forward, the bytes held for the tapes of live micro-batches and for the new output.
class Counted final : public PipelineStage {
 public:
  Counted(ToyStage& stage, Memory& memory) : stage_(stage), memory_(memory) {}
  StageTensorShapes input_shape(int chunk, int i) const override { return stage_.input_shape(chunk, i); }
  StageTensorShapes output_shape(int chunk, int i) const override { return stage_.output_shape(chunk, i); }
  std::span<autograd::Weight* const> weights(int chunk) const override { return stage_.weights(chunk); }
  ForwardResult forward(int chunk, int i, autograd::Tape& tape, const StageTensors& input) override {
    ForwardResult output = stage_.forward(chunk, i, tape, input);
    const uint64_t bytes = memory_.account.use(MemoryCategory::activation).current - runner->bytes_being_sent();
    most = std::max(most, bytes);
    if (runner->num_live() == 1) alone = std::max(alone, bytes);
    return output;
  }

  PipelineRunner* runner = nullptr;
  uint64_t alone = 0, most = 0;  // maximum with one live activation; overall maximum

 private:
  ToyStage& stage_;
  Memory& memory_;
};

TEST(PipelineRunner, LiveActivationsMatchScheduleTable) {
  for (const ScheduleRow& row : schedules()) {
    const ScheduleShape shape{4, row.chunked ? 2 : 1, 8};
    ToyOptions toy;
    toy.units = 2 * shape.virtual_stages();  // virtual stages of equal size
    toy.hidden = 32;
    const PipelineSchedule schedule = make_schedule(row.name, shape);
    net::run_threads(shape.stages, [&](net::World& world) {
      auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
      const PipeEdges edges(comm.get(), shape.chunks > 1);
      Memory memory;
      ToyStage stage(memory.context, toy, shape, world.rank, cuts_of(toy, shape));
      Counted counted(stage, memory);
      PipelineRunner runner(counted, memory.context, edges.stage_edges(), {std::chrono::seconds(60), nullptr});
      counted.runner = &runner;
      runner.run(plan_of(schedule, world.rank));
      // On the stage with the loss, chunks have activations of different sizes, so the formula below does not apply.
      if (row.chunked && world.rank == shape.stages - 1) return;
      // The bytes that each forward releases at its end: its output and, on the last virtual stage, the loss of every
      // row.
      const int64_t given = toy.rows * (toy.width + (world.rank == shape.stages - 1 ? 1 : 0));
      const auto output = static_cast<uint64_t>(given) * sizeof(double);
      const auto live = static_cast<uint64_t>(row.live(shape, world.rank));
      const uint64_t expected = live * (counted.alone - output) + output;
      if (row.backward == Backward::split) {
        // Micro-batches with pending weight gradients also hold the output gradients of two units with two GEMMs each.
        const auto gradients = static_cast<uint64_t>(toy.rows * 2 * (toy.hidden + toy.width)) * sizeof(double);
        EXPECT_LE(counted.most, expected + live * gradients) << "stage " << world.rank;
        EXPECT_GE(counted.most, static_cast<uint64_t>(shape.stages - world.rank) * (counted.alone - output) + output);
      } else {
        EXPECT_EQ(counted.most, expected) << row.name << " stage " << world.rank;
      }
    });
  }
}

TEST(PipelineRunner, BytesSentMatchNumberOfStageBoundaries) {
  for (const ScheduleRow& row : schedules()) {
    const ScheduleShape shape{3, row.chunked ? 2 : 1, 3};
    ToyOptions toy;
    toy.units = shape.virtual_stages();
    const auto sent = [](comm::Communicator* edge) {
      uint64_t bytes = 0;
      if (edge)
        for (const comm::CallStats& stats : edge->stats())
          if (stats.op == comm::Op::send) bytes += stats.bytes_sent;
      return bytes;
    };
    run_stages(make_schedule(row.name, shape), toy, 1, [&](int, const StageObservation& seen) {
      const auto one = static_cast<uint64_t>(toy.rows * toy.width) * sizeof(double);
      const auto [P, v, m] = shape;
      // number of virtual-stage boundaries after and before this stage
      const int after = seen.rank < P - 1 ? v : v - 1, before = seen.rank > 0 ? v : v - 1;
      EXPECT_EQ(sent(seen.edges.activations_out), one * static_cast<uint64_t>(m * after)) << row.name;
      EXPECT_EQ(sent(seen.edges.gradients_out), one * static_cast<uint64_t>(m * before)) << row.name;
    });
  }
}

TEST(PipelineRunner, EvaluationGivesSameLossAndKeepsGradients) {
  for (const ScheduleShape& shape : {ScheduleShape{1, 1, 2}, {3, 1, 5}, {2, 3, 5}}) {
    const ToyOptions toy = toy_for(shape);
    const SingleProcess alone(toy, shape.micro_batches);
    std::mutex mutex;
    double loss = 0;
    run_stages(forward_schedule(shape), toy, 2, [&](int step, const StageObservation& seen) {
      const std::lock_guard lock(mutex);
      for (ToyStage::ToyWeight& weight : seen.stage.all()) {
        EXPECT_EQ(weight.num_ready, 0);
        EXPECT_TRUE(weight.weight.stale);
      }
      EXPECT_EQ(seen.runner.peak_live(), 1);
      if (step == 1) loss += seen.stage.loss();
    });
    EXPECT_EQ(loss, alone.loss);
  }
}

TEST(PipelineRunner, TracesActionsInOrder) {
  const PipelineSchedule schedule = make_schedule("zb-h1", {1, 1, 3});
  obs::Tracer tracer(0);
  obs::TraceRow* row = tracer.add_row("compute");
  RunnerOptions options;
  options.trace = row;
  run_stages(
      schedule, toy_for(schedule.shape), 1, [](int, const StageObservation&) {}, options);
  std::string names;
  for (const obs::SpanRecord& record : row->records()) names += std::string(" ") + record.name;
  EXPECT_EQ(names, " F0 B0 W0 F1 B1 W1 F2 B2 W2");
}

// A stage whose second forward throws.
class Failing final : public PipelineStage {
 public:
  Failing(ToyStage& stage, bool fails) : stage_(stage), fails_(fails) {}
  StageTensorShapes input_shape(int chunk, int i) const override { return stage_.input_shape(chunk, i); }
  StageTensorShapes output_shape(int chunk, int i) const override { return stage_.output_shape(chunk, i); }
  std::span<autograd::Weight* const> weights(int chunk) const override { return stage_.weights(chunk); }
  ForwardResult forward(int chunk, int i, autograd::Tape& tape, const StageTensors& input) override {
    ForwardResult output = stage_.forward(chunk, i, tape, input);
    if (fails_ && i == 1) throw DeviceError("no memory left");
    return output;
  }

 private:
  ToyStage& stage_;
  bool fails_;
};

TEST(PipelineRunner, FailingStageReleasesNeighboursAndWeights) {
  const PipelineSchedule schedule = make_schedule("1f1b", {3, 1, 6});
  const ToyOptions toy = toy_for(schedule.shape);
  std::atomic<int> released = 0;
  net::run_threads(3, [&](net::World& world) {
    auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
    Memory memory;
    ToyStage stage(memory.context, toy, schedule.shape, world.rank, cuts_of(toy, schedule.shape));
    const PipeEdges edges(comm.get(), false);
    Failing failing(stage, world.rank == 1);
    {
      PipelineRunner runner(failing, memory.context, edges.stage_edges(), {std::chrono::seconds(60), nullptr});
      if (world.rank == 1) {
        EXPECT_THROW(runner.run(plan_of(schedule, world.rank)), DeviceError);
      } else {
        EXPECT_THROW(runner.run(plan_of(schedule, world.rank)), CommError);
      }
    }
    for (ToyStage::ToyWeight& weight : stage.all()) EXPECT_EQ(weight.weight.pending, 0);
    ++released;
  });
  EXPECT_EQ(released, 3);
}

TEST(PipelineRunner, ThrowsAtDeadlineWhenNeighbourSendsNothing) {
  const PipelineSchedule schedule = make_schedule("1f1b", {2, 1, 2});
  const ToyOptions toy = toy_for(schedule.shape);
  std::atomic<bool> gave_up = false;
  net::run_threads(2, [&](net::World& world) {
    auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
    const PipeEdges edges(comm.get(), false);
    if (world.rank == 0) {  // present, but sends nothing
      gave_up.wait(false);
      return;
    }
    Memory memory;
    ToyStage stage(memory.context, toy, schedule.shape, 1, cuts_of(toy, schedule.shape));
    {
      PipelineRunner runner(stage, memory.context, edges.stage_edges(), {std::chrono::milliseconds(20), nullptr});
      EXPECT_THROW(runner.run(plan_of(schedule, 1)), CommError);
    }
    gave_up = true;
    gave_up.notify_all();
  });
}

TEST(DeferReady, OnReadyFiresAfterLastResume) {
  Memory memory;
  autograd::Weight weight;
  weight.grad = tensor::zeros(memory.context, {3}, DType::f64, MemoryCategory::gradient);
  weight.trained = weight.stale = true;
  int ready = 0;
  weight.on_ready = [&] { ++ready; };
  defer_ready(weight);
  defer_ready(weight);
  resume_ready(weight, memory.context.stream);
  EXPECT_EQ(ready, 0);
  resume_ready(weight, memory.context.stream);
  EXPECT_EQ(ready, 1);
  EXPECT_FALSE(weight.stale);
  weight.trained = false;
  defer_ready(weight);
  EXPECT_EQ(weight.pending, 0);
}

}  // namespace
}  // namespace esp::parallel
