// Stages that really run, as threads of this process: every schedule must give, to the bit, what one process gives that
// takes the micro-batches one by one, hold as much as the table says, and send as much.
#include "esp/parallel/pp/runner.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "esp/base/error.h"
#include "esp/comm/over.h"
#include "esp/net/inproc/threads.h"
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
  device::Pool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
};

using Gradients = std::map<std::pair<int, int>, std::vector<std::byte>>;  // by unit and part

void collect(ToyStage& stage, Gradients& into) {
  for (ToyStage::Named& named : stage.all()) {
    const auto* data = named.weight.grad.as<std::byte>();
    into[{named.unit, named.part}].assign(data, data + named.weight.grad.bytes());
  }
}

std::vector<int> cuts_of(const ToyOptions& toy, const ScheduleShape& shape) {
  return linear_partition(std::vector<double>(static_cast<size_t>(toy.units), 1.0), shape.pieces());
}

// One process, one tape, no runner.
struct Alone {
  Gradients gradients;
  double loss = 0;

  Alone(const ToyOptions& toy, int micro_batches) {
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

// What a test wants to see of one stage.
struct StageSeen {
  int rank = 0;
  Memory& memory;
  ToyStage& stage;
  Runner& runner;
  StageEdges edges;
};

// `steps` steps of the schedule by as many threads as it has stages; `look` is called by each after every step.
void run_stages(const Schedule& schedule, const ToyOptions& toy, int steps,
                const std::function<void(int step, const StageSeen&)>& look, Runner::Options options = {}) {
  validate(schedule);
  options.timeout = std::chrono::seconds(60);
  net::run_threads(schedule.shape.stages, [&](net::World& world) {
    auto comm = comm::make_communicator(world, world.everyone(), comm::over("inproc"));
    const PipeEdges edges(comm.get(), schedule.shape.chunks > 1);
    Memory memory;
    ToyStage stage(memory.context, toy, schedule.shape, world.rank, cuts_of(toy, schedule.shape));
    Runner runner(stage, memory.context, edges.here(), options);
    const StagePlan plan = plan_of(schedule, world.rank);
    for (int step = 0; step < steps; ++step) {
      stage.begin_step();
      runner.run(plan);
      look(step, {world.rank, memory, stage, runner, edges.here()});
    }
  });
}

ToyOptions toy_for(const ScheduleShape& shape) {
  ToyOptions toy;
  toy.units = shape.pieces() + 1;  // uneven pieces
  toy.uneven = true;
  return toy;
}

void expect_as_alone(const Schedule& schedule, const ToyOptions& toy) {
  const auto [P, v, m] = schedule.shape;
  SCOPED_TRACE(testing::Message() << schedule.name << " P=" << P << " v=" << v << " m=" << m);
  const Alone alone(toy, m);
  std::mutex mutex;
  Gradients gradients;
  double loss = 0;
  std::vector<uint64_t> reserved(static_cast<size_t>(P));
  run_stages(schedule, toy, 3, [&](int step, const StageSeen& seen) {
    const std::lock_guard lock(mutex);
    for (ToyStage::Named& named : seen.stage.all()) {
      EXPECT_EQ(named.num_ready, 1);
      EXPECT_EQ(named.weight.pending, 0);
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

TEST(PipelineRunner, EveryScheduleGivesTheBitsOfOneProcess) {
  for (const ScheduleRow& row : schedules())
    for (int P : {1, 2, 3, 4})
      for (int m : {1, 3, 4, 6})
        for (int v : {1, 2, 3}) {
          const ScheduleShape shape{P, v, m};
          if ((v > 1 && !row.chunked) || (row.chunked && m % P != 0)) continue;
          expect_as_alone(make_schedule(row.name, shape), toy_for(shape));
        }
}

TEST(PipelineRunner, MemoryTravelsBesideTheStream) {
  for (const char* name : {"1f1b", "interleaved", "zb-h1"}) {
    const ScheduleShape shape{3, std::string(name) == "interleaved" ? 2 : 1, 3};
    ToyOptions toy = toy_for(shape);
    toy.memory = true;
    expect_as_alone(make_schedule(name, shape), toy);
  }
}

}  // namespace
}  // namespace esp::parallel
