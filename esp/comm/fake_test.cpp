// The fake communicator counts the same traffic as the real one.
#include "esp/comm/fake.h"

#include <gtest/gtest.h>

#include "esp/comm/algo/table.h"
#include "esp/comm/arguments.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

TEST(FakeCommunicator, CountsTrafficOfRealCommunicator) {
  for (int size : {2, 3, 4, 6})
    net::run_threads(size, [&](net::World& world) {
      CommOptions options;
      options.transport = "inproc";
      options.slice_bytes = 0;  // each slice would count as a message
      auto real = make_communicator(world, world.world_group(), options);
      auto fake = make_fake(world.rank, size, options);
      for (const AlgorithmRow& row : algorithms()) {
        Call call;
        call.op = row.op;
        call.count = row.op == Op::barrier || row.op == Op::all_to_all_v ? 0 : 12 * static_cast<size_t>(size);
        call.algorithm = row.name;
        CollectiveSpec spec;
        spec.op = row.op;
        spec.rank = world.rank;
        spec.size = size;
        spec.count = call.count;
        if (row.op == Op::all_to_all_v || (row.applies && !row.applies(spec).empty())) continue;
        std::vector<float> in(call.count, 1.0f), out(call.count);
        call.in = in.data();
        call.out = out.data();
        real->run(call);
        fake->run(call);
      }
      auto sent = real->stats(), counted = fake->stats();
      ASSERT_EQ(sent.size(), counted.size());
      for (size_t i = 0; i < sent.size(); ++i) {
        EXPECT_EQ(sent[i].op, counted[i].op);
        EXPECT_EQ(sent[i].algorithm, counted[i].algorithm);
        EXPECT_EQ(sent[i].bytes_sent, counted[i].bytes_sent) << name_of(sent[i].op) << " " << sent[i].algorithm;
        EXPECT_EQ(sent[i].bytes_received, counted[i].bytes_received) << name_of(sent[i].op) << " " << sent[i].algorithm;
        EXPECT_EQ(sent[i].messages, counted[i].messages) << name_of(sent[i].op) << " " << sent[i].algorithm;
        EXPECT_EQ(sent[i].rounds, counted[i].rounds) << name_of(sent[i].op) << " " << sent[i].algorithm;
      }
    });
}

TEST(FakeCommunicator, MovesNoDataAndNeverWaits) {
  auto fake = make_fake(3, 8);
  std::vector<float> in(64, 1.0f), out(64, 7.0f);
  fake->all_reduce(in.data(), out.data(), 64, DType::f32, ReduceOp::sum);
  EXPECT_EQ(out, std::vector<float>(64, 7.0f));
  fake->recv(out.data(), 64, DType::f32, 0);
  EXPECT_THROW(fake->recv(out.data(), 64, DType::f32, 8), UsageError);
  EXPECT_EQ(fake->split(-1, 0), nullptr);
  EXPECT_EQ(fake->split(0, 0)->size(), 8);
}

}  // namespace
}  // namespace esp::comm
