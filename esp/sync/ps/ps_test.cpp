// Workers and servers on real ranks, with synthetic gradients, compared with a one-process reference that replays the
// recorded order.
#include "esp/sync/ps/ps.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "esp/base/error.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/obs/temporary_folder.h"
#include "esp/sync/ps/application_order.h"
#include "esp/sync/ps/ps_worker.h"
#include "esp/sync/testing.h"

namespace esp::sync {
namespace {

const std::vector<std::vector<int64_t>> kUnits = {{10, 33}, {201}, {7, 1, 90}};
constexpr int64_t kCount = 342;
constexpr double kRate = 0.2;

// Gradient of a quadratic function. Its minimiser depends on worker, step and element.
float gradient(int worker, int64_t step, int64_t at, float x) {
  return x - static_cast<float>((worker * 31 + at * 7 + step * 3) % 17);
}

struct PsRun {
  int workers = 4, servers = 2, steps = 8;
  bool dedicated = false;
  std::string mode = "async";
  int64_t staleness = 1;
  int slow_ms = 0;  // delay of the last worker in every step
  std::string folder;

  int ranks() const { return dedicated ? workers + servers : workers; }
  Options options() const {
    Options o;
    o.method = "ps";
    o.ps.mode = mode;
    o.ps.staleness = staleness;
    o.ps.servers = servers;
    o.ps.server_ranks = dedicated ? "dedicated" : "beside";
    o.ps.partition_mb = 50.0 * 4 / (1 << 20);
    o.ps.record = folder;
    return o;
  }
};

std::vector<float> run_ranks(const PsRun& run) {
  std::vector<float> held(static_cast<size_t>(kCount));
  std::mutex mutex;
  with_ranks(run.ranks(), [&](comm::Communicator* comm) {
    StrategyFixture made(kUnits, comm, run.options(), DType::f32);
    const auto optimizer = made.strategy->make_optimizer({.name = "sgd", .momentum = 0});
    AsyncWorkers& workers = *made.strategy->async_workers();
    for (int step = 0; step < run.steps; ++step) {
      made.strategy->begin_step();
      if (!workers.is_server_only()) {
        if (comm->rank() == run.workers - 1 && run.slow_ms > 0)
          std::this_thread::sleep_for(std::chrono::milliseconds(run.slow_ms));
        made.strategy->begin_pass({});
        auto& all = made.list.all();
        for (auto p = all.rbegin(); p != all.rend(); ++p) {
          const auto* x = p->weight.value.as<float>();
          made.deliver<float>(*p, [&](int64_t i) { return gradient(comm->rank(), step, made.first(*p) + i, x[i]); });
        }
        made.strategy->end_pass();
      }
      made.strategy->finish();
      made.strategy->sums_of_squares();
      optimizer->step(kRate, 1);
      made.strategy->after_step();
    }
    const auto mine = made.strategy->checkpoint_shards();
    std::lock_guard lock(mutex);
    for (const optim::ValueShard& one : mine) {
      const int64_t first = made.list.units()[static_cast<size_t>(one.range.unit)].first + one.range.begin;
      std::copy_n(one.values.as<float>(), one.values.count(), held.begin() + first);
    }
  });
  return held;
}

std::vector<std::vector<OrderEvent>> orders_of(const PsRun& run) {
  std::vector<std::vector<OrderEvent>> orders;
  for (int k = 0; k < run.servers; ++k) orders.push_back(load_order(run.folder, k));
  return orders;
}

// Reference in one process: replays each server's events in their recorded order. An event runs once its inputs exist.
std::vector<float> emulate(const PsRun& run) {
  const auto orders = orders_of(run);
  std::vector<float> x(kCount);
  // The weights that a worker uses in a step, and the number of servers whose part of them is known.
  struct Read {
    std::vector<float> x = std::vector<float>(kCount);
    int servers = 0;
  };
  std::map<std::pair<int, int64_t>, Read> reads;
  for (int w = 0; w < run.workers; ++w) reads[{w, 0}].servers = run.servers;
  std::vector<size_t> at(orders.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t k = 0; k < orders.size(); ++k) {
      if (at[k] == orders[k].size()) continue;
      const OrderEvent& event = orders[k][at[k]];
      const comm::Chunk shard = comm::chunk_of(kCount, run.servers, static_cast<int>(k));
      Read& read = reads[{event.worker, event.step}];
      if (event.kind == OrderEvent::Kind::pull) {
        if (event.step == run.steps) {  // the pull after the last step, whose weights are not used
        } else {
          std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(shard.offset), shard.count,
                      read.x.begin() + static_cast<std::ptrdiff_t>(shard.offset));
          ++read.servers;
        }
      } else {
        if (read.servers < run.servers) continue;
        std::vector<float> g(shard.count);
        for (size_t i = 0; i < shard.count; ++i)
          g[i] = gradient(event.worker, event.step, static_cast<int64_t>(shard.offset + i), read.x[shard.offset + i]);
        kernel::StepBuffers buffers;
        buffers.master = x.data() + shard.offset;
        buffers.grad = g.data();
        buffers.count = static_cast<int64_t>(shard.count);
        kernel::SgdStep step;
        step.lr = kRate / run.workers;
        kernel::sgd_step(buffers, step, {});
      }
      ++at[k];
      moved = true;
    }
  }
  for (size_t k = 0; k < orders.size(); ++k) EXPECT_EQ(at[k], orders[k].size()) << "server " << k;
  return x;
}

TEST(Ps, AsynchronousRunMatchesReplayOfItsRecordedOrderBitForBit) {
  for (const bool dedicated : {false, true})
    for (const int servers : {1, 2, 3})
      for (const char* mode : {"async", "ssp"}) {
        const obs::TemporaryFolder folder;
        PsRun run;
        run.mode = mode;
        run.servers = servers;
        run.dedicated = dedicated;
        run.folder = folder.path();
        const std::vector<float> ran = run_ranks(run);
        EXPECT_EQ(ran, emulate(run)) << mode << " on " << servers << " servers, dedicated " << dedicated;
      }
}

// Holds for any timing: a worker begins clock c only after every worker has finished clock c − s.
TEST(Ps, StaleSynchronousClocksStayWithinTheBound) {
  for (const int64_t bound : {1, 3}) {
    const obs::TemporaryFolder folder;
    PsRun run;
    run.mode = "ssp";
    run.staleness = bound;
    run.slow_ms = 4;
    run.steps = 10;
    run.folder = folder.path();
    run_ranks(run);
    for (const auto& order : orders_of(run)) {
      std::vector<int64_t> clocks(static_cast<size_t>(run.workers));
      for (const OrderEvent& event : order) {
        if (event.kind == OrderEvent::Kind::push)
          EXPECT_EQ(clocks[static_cast<size_t>(event.worker)]++, event.step);
        else
          EXPECT_LE(event.step - *std::min_element(clocks.begin(), clocks.end()), bound);
      }
      EXPECT_EQ(clocks, (std::vector<int64_t>(static_cast<size_t>(run.workers), run.steps)));
    }
  }
}

// Servers are dedicated, so all bytes cross the transport. With S bytes of weights, a worker sends S and receives S; a
// server receives W·S/K and sends W·S/K.
TEST(PsBytes, MatchTheExpectedPushAndPullBytes) {
  const int workers = 3, servers = 2, steps = 4;
  const uint64_t S = kCount * 4;
  const auto due = [&](int rank) {
    return rank < workers ? S : workers * comm::chunk_of(kCount, servers, rank - workers).count * 4;
  };
  std::vector<PsWorker::WorkerTraffic> counts(workers + servers);
  with_ranks(workers + servers, [&](comm::Communicator* comm) {
    const int rank = comm->rank();
    device::MemoryAccount account;
    device::MemoryPool pool{account};
    nn::ParameterList list;
    for (const auto& unit : kUnits) {
      list.begin_unit("u" + std::to_string(list.units().size()));
      for (const int64_t count : unit)
        list.add("p" + std::to_string(list.all().size()), {count}, nn::Init::zeros(), false);
    }
    PsOptions options;
    options.servers = servers;
    options.server_ranks = "dedicated";
    options.update = "worker";
    options.partition_mb = 50.0 * 4 / (1 << 20);
    const ServerLayout layout = make_server_layout(list, comm->size(), options, DType::f32);
    std::vector<float> memory(kCount);
    PsWorker::Setup setup;
    setup.layout = &layout;
    setup.ps = options;
    setup.context = {{}, &pool};
    setup.rank = rank;
    setup.timeout = std::chrono::seconds(60);
    const auto where = [&](int p) { return memory.data() + layout.partitions[static_cast<size_t>(p)].begin; };
    setup.gradients = where;
    setup.receive_buffer = [&](int p) { return reinterpret_cast<std::byte*>(where(p)); };
    setup.received = [](int) {};
    PsWorker worker(setup, comm->open_transport());
    const auto num = static_cast<int>(layout.partitions.size());
    for (int step = 0; step < steps; ++step) {
      std::fill(memory.begin(), memory.end(), static_cast<float>(rank + 1));
      if (layout.works(rank))
        for (int p = num - 1; p >= 0; --p) worker.push(p);
      worker.next_step();
      if (!layout.works(rank)) continue;
      worker.wait_values();
      for (const float x : memory) ASSERT_EQ(x, 6);
      worker.wait_pushed();
    }
    comm->barrier();
    // Waits, because a PsWorker updates its counters shortly after the transfer.
    const auto all_counted = [&] {
      const PsWorker::WorkerTraffic of = worker.counts();
      return of.queue.payload_sent() >= steps * due(rank) && of.queue.payload_received() >= steps * due(rank) &&
             of.traffic.bytes_sent >= of.queue.payload_sent() + kMessageBytes * of.queue.messages_sent;
    };
    for (const auto deadline = Deadline::after(std::chrono::seconds(10)); !all_counted() && !deadline.passed();)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    counts[static_cast<size_t>(rank)] = worker.counts();
    comm->barrier();
  });
  for (int rank = 0; rank < workers + servers; ++rank) {
    const PsWorker::WorkerTraffic& of = counts[static_cast<size_t>(rank)];
    EXPECT_EQ(of.queue.payload_sent(), steps * due(rank)) << rank;
    EXPECT_EQ(of.queue.payload_received(), steps * due(rank)) << rank;
    EXPECT_EQ(of.traffic.bytes_sent, of.queue.payload_sent() + kMessageBytes * of.queue.messages_sent) << rank;
    if (rank >= workers) continue;
    EXPECT_EQ(of.pushed_bytes, steps * S);
    EXPECT_EQ(of.pulled_bytes, steps * S);
  }
}

// With priorities the partitions that forward needs first return first, although backward completes them last. With
// fifo the order is reversed.
TEST(PsScheduling, PriorityReturnsTheSumOfTheFirstLayerFirst) {
  for (const std::string order : {"priority", "fifo"}) {
    std::vector<int> received;
    with_ranks(2, [&](comm::Communicator* comm) {
      device::MemoryAccount account;
      device::MemoryPool pool{account};
      nn::ParameterList list;
      for (int layer = 0; layer < 5; ++layer) {
        list.begin_unit("layer" + std::to_string(layer));
        list.add("p" + std::to_string(layer), {100}, nn::Init::zeros(), false);
      }
      PsOptions options;
      options.servers = 1;
      options.server_ranks = "dedicated";
      options.update = "worker";
      options.push_order = order;
      options.credit = 1;
      options.partition_mb = 100.0 * 4 / (1 << 20);
      const ServerLayout layout = make_server_layout(list, 2, options, DType::f32);
      std::vector<float> memory(500);
      PsWorker::Setup setup;
      setup.layout = &layout;
      setup.ps = options;
      setup.context = {{}, &pool};
      setup.rank = comm->rank();
      setup.timeout = std::chrono::seconds(60);
      setup.gradients = [&](int p) { return memory.data() + p * 100; };
      setup.receive_buffer = [&](int p) { return reinterpret_cast<std::byte*>(memory.data() + p * 100); };
      setup.received = [](int) {};
      PsWorker worker(setup, comm->open_transport());
      if (comm->rank() == 0) {
        worker.push(std::vector<int>{4, 3, 2, 1, 0});
        worker.next_step();
        worker.wait_values();
        received = worker.counts().received;
      }
      comm->barrier();
    });
    EXPECT_EQ(received, order == "priority" ? (std::vector<int>{0, 1, 2, 3, 4}) : (std::vector<int>{4, 3, 2, 1, 0}));
  }
}

TEST(Ps, ReportsServerFailureOnEveryWorker) {
  for (const std::string mode : {"sync", "async"}) {
    PsRun run;
    run.workers = 3;
    run.servers = 1;
    run.dedicated = true;
    run.mode = mode;
    std::vector<std::string> said(3);
    const auto body = [&](comm::Communicator* comm) {
      StrategyFixture made({{64}}, comm, run.options(), DType::f32);
      const auto optimizer = made.strategy->make_optimizer({.name = "sgd", .momentum = 0});
      const bool serves = made.strategy->async_workers()->is_server_only();
      const Deadline deadline = Deadline::after_ms(60'000);
      for (int step = 0; !deadline.passed(); ++step) {
        made.strategy->begin_step();
        if (serves && step == 2) throw std::runtime_error("gone");
        if (!serves) {
          made.strategy->begin_pass({});
          made.deliver<float>(made.list.all().front(), [](int64_t) { return 1.0; });
          made.strategy->end_pass();
        }
        made.strategy->finish();
        made.strategy->sums_of_squares();
        optimizer->step(kRate, 1);
        made.strategy->after_step();
      }
    };
    EXPECT_THROW(with_ranks(4,
                            [&](comm::Communicator* comm) {
                              try {
                                body(comm);
                              } catch (const CommError& error) {
                                said[static_cast<size_t>(comm->rank())] = error.what();
                                throw;
                              }
                            }),
                 std::runtime_error);
    for (const std::string& words : said) EXPECT_NE(words.find("rank 3"), std::string::npos) << mode << ": " << words;
  }
}

TEST(Ps, MedianToleratesAFaultyWorker) {
  const auto value_after = [](const std::string& aggregate) {
    double seen = 0;
    with_ranks(3, [&](comm::Communicator* comm) {
      Options options;
      options.method = "ps";
      options.ps.aggregate = aggregate;
      StrategyFixture made({{64}}, comm, options, DType::f64);
      const auto optimizer = made.strategy->make_optimizer({.name = "sgd", .momentum = 0});
      nn::Parameter& p = made.list.all().front();
      for (int step = 0; step < 60; ++step) {
        made.strategy->begin_step();
        made.strategy->begin_pass({});
        const auto* x = p.weight.value.as<double>();
        const double mad = comm->rank() == 1 ? 1e6 : 1;
        made.deliver<double>(p, [&](int64_t i) { return mad * (x[i] - 2) / 3; });
        made.strategy->end_pass();
        made.strategy->finish();
        made.strategy->sums_of_squares();
        optimizer->step(0.3, 1);
        made.strategy->after_step();
      }
      if (comm->rank() == 0) seen = p.weight.value.as<double>()[5];
    });
    return seen;
  };
  EXPECT_NEAR(value_after("median"), 2, 1e-6);
  EXPECT_NEAR(value_after("trimmed_mean"), 2, 1e-6);
  EXPECT_FALSE(std::abs(value_after("mean") - 2) < 1e6);
}

}  // namespace
}  // namespace esp::sync
