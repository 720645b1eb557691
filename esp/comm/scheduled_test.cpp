// Every algorithm on every size of group, over threads, against the order of summation it declares.
#include "esp/comm/scheduled.h"

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <random>

#include <fmt/format.h>

#include "esp/comm/algo/table.h"
#include "esp/comm/arguments.h"
#include "esp/comm/communicator.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 60s;

CommOptions over_inproc() {
  CommOptions options;
  options.transport = "inproc";
  options.timeout = kLong;
  return options;
}

TEST(Scheduled, AllReducesSmallIntegersExactlyWithEveryAlgorithm) {
  for (int size : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    net::run_threads(size, [&](net::World& world) {
      auto comm = make_communicator(world, world.everyone(), over_inproc());
      for (const AlgorithmRow* row : algorithms_for(Op::all_reduce)) {
        for (size_t count : {0, 1, 7, 64, 1000}) {
          Problem problem{Op::all_reduce, world.rank, size, count, 0, {}, 0};
          if (row->applies && !row->applies(problem).empty()) continue;
          std::vector<int32_t> in(count), out(count, -1);
          for (size_t i = 0; i < count; ++i) in[i] = static_cast<int32_t>(i) + world.rank * 100;
          Call call;
          call.op = Op::all_reduce;
          call.in = in.data();
          call.out = out.data();
          call.count = count;
          call.dtype = DType::i32;
          call.algorithm = row->name;
          comm->run(call);
          for (size_t i = 0; i < count; ++i)
            ASSERT_EQ(out[i], size * static_cast<int32_t>(i) + 100 * size * (size - 1) / 2)
                << row->name << " size " << size << " count " << count << " element " << i;
        }
      }
    });
  }
}

}  // namespace
}  // namespace esp::comm
