// Collective calls allocate heap memory only in the first call with a given shape, on every execution path.
#include <gtest/gtest.h>

#include <algorithm>

#include "esp/base/allocation_counter.h"
#include "esp/comm/communicator.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

TEST(Allocation, RepeatedCallsDoNotAllocate) {
#if ESP_COUNTS_ALLOCATIONS
  net::run_threads(3, [](net::World& world) {
    for (const char* transport : {"inproc", "auto"}) {
      CommOptions options;
      options.transport = transport;
      auto comm = make_communicator(world, world.world_group(), options);
      std::vector<float> in(100'000, 1.0f), out(100'000);
      auto calls = [&] {
        comm->all_reduce(in.data(), out.data(), in.size(), DType::f32, ReduceOp::sum);
        comm->all_reduce(in.data(), in.data(), 64, DType::f32, ReduceOp::max);
        comm->broadcast(in.data(), 1000, DType::f32, 1);
        comm->all_gather(in.data(), out.data(), 1000, DType::f32);
        comm->reduce_scatter(in.data(), out.data(), 1000, DType::f32, ReduceOp::avg);
        comm->all_to_all(in.data(), out.data(), 1000, DType::f32);
        comm->barrier();
        if (world.rank == 0) comm->send(in.data(), 1000, DType::f32, 1);
        if (world.rank == 1) comm->recv(in.data(), 1000, DType::f32, 0);
        Call ring;
        ring.op = Op::all_reduce;
        ring.in = ring.out = out.data();
        ring.count = 5000;
        ring.algorithm = "ring";
        comm->run(ring);
      };
      for (int i = 0; i < 3; ++i) calls();
      // On a busy machine, a call that waits long checks its peers, and this check allocates memory. The test therefore
      // takes the minimum of 20 rounds.
      uint64_t least = UINT64_MAX;
      for (int round = 0; round < 20; ++round) {
        const uint64_t before = thread_allocations;
        for (int i = 0; i < 10; ++i) calls();
        least = std::min(least, thread_allocations - before);
      }
      EXPECT_EQ(least, 0u) << transport;
    }
  });
#else
  GTEST_SKIP() << "allocations are not counted under a sanitizer";
#endif
}

}  // namespace
}  // namespace esp::comm
