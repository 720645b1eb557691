// Helpers of strategy tests: a parameter list without a model, and ranks that complete its gradients one by one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "esp/autograd/functions/weights.h"
#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"
#include "esp/sync/strategy.h"

namespace esp::sync {

// A strategy over units of parameters of the given sizes; works with every strategy of the table.
struct StrategyFixture {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
  nn::ParameterList list;
  std::unique_ptr<Strategy> strategy;

  StrategyFixture(const std::vector<std::vector<int64_t>>& units, comm::Communicator* ranks, const Options& options,
                  DType storage) {
    for (size_t u = 0; u < units.size(); ++u) {
      list.begin_unit("unit" + std::to_string(u));
      for (size_t p = 0; p < units[u].size(); ++p)
        list.add("p" + std::to_string(u) + "." + std::to_string(p), {units[u][p]}, nn::Init::zeros(), false);
    }
    Setup setup;
    setup.ranks = ranks;
    setup.parameters = &list;
    setup.context = context;
    setup.storage = storage;
    setup.options = options;
    setup.timeout = std::chrono::seconds(60);
    strategy = make_strategy(setup);
  }

  // Simulates backward: adds `value(i)` to element i and completes the gradient.
  template <typename T>
  void deliver(nn::Parameter& p, const std::function<double(int64_t)>& value) {
    T* at = static_cast<T*>(autograd::gradient_to_add_to(&p.weight, context.stream));
    for (int64_t i = 0; i < p.count(); ++i) at[i] += static_cast<T>(value(i));
    if (p.weight.on_ready) p.weight.on_ready();
  }
  int64_t first(const nn::Parameter& p) const { return list.units()[static_cast<size_t>(p.unit)].first + p.offset; }
};

inline void with_ranks(int size, const std::function<void(comm::Communicator*)>& body) {
  net::run_threads(size, [&](net::World& world) {
    auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
    body(comm.get());
  });
}

}  // namespace esp::sync
