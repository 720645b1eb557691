#include "apps/espalier/lab_ps.h"

#include <cmath>
#include <thread>

#include "esp/autograd/functions/weights.h"
#include "esp/base/clock.h"
#include "esp/base/rng.h"
#include "esp/comm/test_options.h"
#include "esp/device/pool.h"
#include "esp/net/inproc/threads.h"
#include "esp/sync/strategy.h"

namespace esp::app {
namespace {

// One worker: its memory, and its instance of the problem ½‖x − 1‖² with noisy gradients.
struct Worker {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};
  nn::ParameterList list;
  std::unique_ptr<sync::Strategy> strategy;
  std::unique_ptr<optim::Optimizer> optimizer;

  Worker(const PsLabOptions& o, const ModeRun& run, comm::Communicator* ranks) {
    for (int layer = 0; layer < 4; ++layer) {
      list.begin_unit("layer" + std::to_string(layer));
      list.add("w" + std::to_string(layer), {o.elements / 4}, nn::Init::zeros(), false);
    }
    sync::Setup setup;
    setup.ranks = ranks;
    setup.parameters = &list;
    setup.context = context;
    setup.timeout = std::chrono::minutes(1);
    setup.options.method = "ps";
    setup.options.ps.mode = run.mode;
    setup.options.ps.staleness = run.staleness;
    setup.options.ps.servers = o.servers;
    strategy = sync::make_strategy(setup);
    optim::OptimizerOptions sgd;
    sgd.name = "sgd";
    sgd.momentum = 0;
    optimizer = strategy->make_optimizer(sgd);
  }

  void step(const PsLabOptions& o, int rank, int64_t step) {
    const bool slow = rank == o.workers - 1;
    strategy->begin_step();
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(o.step_ms * (slow ? o.slow : 1)));
    strategy->begin_pass({});
    auto& all = list.all();
    // Synchronous servers sum the gradients of W workers. Other servers apply each gradient separately, with rate lr/W.
    const double share = strategy->async_workers()->lockstep() ? 1.0 / o.workers : 1;
    for (auto p = all.rbegin(); p != all.rend(); ++p) {
      const auto* x = p->weight.value.as<float>();
      auto* g = static_cast<float*>(autograd::gradient_to_add_to(&p->weight, context.stream));
      for (int64_t i = 0; i < p->count(); ++i) {
        const auto at = static_cast<uint64_t>((step * 64 + p->index) * p->count() + i);
        const double noise = static_cast<double>(random_bits(7, static_cast<uint64_t>(rank), at) >> 11) * 0x1p-53 - 0.5;
        g[i] += static_cast<float>(share * (x[i] - 1 + o.noise * noise));
      }
      if (p->weight.on_ready) p->weight.on_ready();
    }
    strategy->end_pass();
    strategy->finish();
    strategy->sums_of_squares();
    optimizer->step(o.lr, 1);
    strategy->after_step();
  }

  double error() const {
    double sum = 0;
    for (const nn::Parameter& p : list.all())
      for (int64_t i = 0; i < p.count(); ++i) sum += std::pow(p.weight.value.as<float>()[i] - 1, 2);
    return sum / static_cast<double>(list.count());
  }
};

}  // namespace

double ModeRun::steps_per_s() const {
  int64_t sum = 0;
  for (const int64_t one : steps) sum += one;
  return static_cast<double>(sum) / wall_s;
}

void run_mode(const PsLabOptions& o, ModeRun& run) {
  run.steps.assign(static_cast<size_t>(o.workers), 0);
  const int64_t begun = now_ns();
  const auto until = begun + static_cast<int64_t>(o.seconds * 1e9);
  std::vector<int64_t> in_time(run.steps.size());
  net::run_threads(o.workers, [&](net::World& world) {
    const auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
    Worker worker(o, run, comm.get());
    const auto me = static_cast<size_t>(world.rank);
    const bool lockstep = worker.strategy->async_workers()->lockstep();
    int64_t step = 0;
    for (bool over = false; !over; ++step) {
      worker.step(o, world.rank, step);
      if (now_ns() < until) in_time[me] = step + 1;
      double wish = now_ns() >= until ? 1 : 0;
      if (lockstep) {
        comm->all_reduce(&wish, &wish, 1, DType::f64, comm::ReduceOp::max);
        over = wish > 0;
        continue;
      }
      if (wish > 0) worker.strategy->async_workers()->request_stop();
      over = worker.strategy->async_workers()->stops_before(step + 1);
    }
    worker.strategy->async_workers()->synchronise();
    if (world.rank == 0) {
      run.error = worker.error();
      for (const std::string& note : worker.strategy->take_notes()) run.note = note;
    }
  });
  run.steps = in_time;
  run.wall_s = o.seconds;
}

}  // namespace esp::app
