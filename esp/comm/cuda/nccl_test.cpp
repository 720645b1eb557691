// Tests the NCCL communicator with a world of one rank on one GPU. Two ranks on one GPU must be rejected.
#include "esp/comm/nccl/nccl.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

using namespace std::chrono_literals;
constexpr device::Device kGpu{device::DeviceKind::cuda, 0};

class NcclOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (device::survey_gpus().gpus.empty()) GTEST_SKIP() << device::survey_gpus().problem;
    std::string spec;
    if (nccl_version(&spec).empty()) GTEST_SKIP() << spec;
  }
};

// A communicator of one rank, with test data on its GPU.
struct SingleRankGpu {
  explicit SingleRankGpu(net::World& world)
      : host(make_communicator(world, world.world_group(), test_options("inproc"))),
        comm(make_nccl(*host, stream, account)) {}

  float* put(const std::vector<float>& values) {
    auto* there =
        reinterpret_cast<float*>(pool.take(values.size() * sizeof(float), device::MemoryCategory::other)->data);
    device::copy(there, values.data(), values.size() * sizeof(float), stream);
    return there;
  }
  std::vector<float> get(const float* there, size_t count) {
    std::vector<float> values(count);
    device::copy(values.data(), there, count * sizeof(float), stream);
    device::finish(stream);
    return values;
  }

  device::MemoryAccount account;
  std::unique_ptr<device::SegmentSource> source = device::gpu_memory(kGpu);
  device::MemoryPool pool{account, device::MemoryTier::device, *source};
  device::GpuQueue queue{kGpu, &account};
  device::Stream stream = queue.stream();
  std::unique_ptr<Communicator> host, comm;
};

TEST_F(NcclOnGpu, RunsEveryCallOnOneRank) {
  net::run_threads(1, [](net::World& world) {
    SingleRankGpu one(world);
    const std::vector<float> numbers = {1, 2, 3, 4, 5};
    for (Op op : {Op::broadcast, Op::reduce, Op::all_reduce, Op::reduce_scatter, Op::all_gather, Op::all_to_all,
                  Op::gather, Op::scatter}) {
      Call call;
      call.op = op;
      call.in = one.put(numbers);
      float* out = one.put(std::vector<float>(6, -1));
      call.out = out;
      call.count = numbers.size();
      EXPECT_NE(one.comm->explain(call).find("NCCL"), std::string::npos) << name_of(op);
      one.comm->run(call);
      EXPECT_EQ(one.get(out, 6), (std::vector<float>{1, 2, 3, 4, 5, -1})) << name_of(op);
    }
    const std::vector<CallStats> stats = one.comm->stats();
    EXPECT_EQ(std::count_if(stats.begin(), stats.end(), [](const CallStats& s) { return s.algorithm == "nccl"; }), 8);
  });
}

TEST_F(NcclOnGpu, DeliversChunksOfGroupedCalls) {
  net::run_threads(1, [](net::World& world) {
    SingleRankGpu one(world);
    const std::vector<size_t> counts = {2}, from = {1}, to = {3};
    Call pieces;
    pieces.op = Op::all_to_all_v;
    pieces.in = one.put({1, 2, 3, 4});
    float* out = one.put(std::vector<float>(6, -1));
    pieces.out = out;
    pieces.send_counts = pieces.recv_counts = counts;
    pieces.send_offsets = from;
    pieces.recv_offsets = to;
    const Work work = one.comm->start(pieces);
    work.wait(Deadline::after(60s));
    EXPECT_EQ(one.get(out, 6), (std::vector<float>{-1, -1, -1, 2, 3, -1}));

    Call sum;
    sum.op = Op::all_reduce;
    float* data = one.put({7});
    sum.in = sum.out = data;
    sum.count = 1;
    const std::vector<Call> calls = {pieces, sum};
    one.comm->start_group(calls).wait(Deadline::after(60s));
    EXPECT_EQ(one.get(data, 1), std::vector<float>{7});
  });
}

TEST_F(NcclOnGpu, RoutesUnsupportedCallsToHost) {
  net::run_threads(1, [](net::World& world) {
    SingleRankGpu one(world);
    double host = 3;
    one.comm->all_reduce(&host, &host, 1, DType::f64, ReduceOp::sum);
    EXPECT_EQ(host, 3);
    one.comm->barrier();
    Call ordered;
    ordered.op = Op::all_reduce;
    float* data = one.put({4});
    ordered.in = ordered.out = data;
    ordered.count = 1;
    ordered.algorithm = "direct";
    EXPECT_EQ(one.comm->explain(ordered).find("NCCL"), std::string::npos);
    one.comm->run(ordered);
    EXPECT_EQ(one.get(data, 1), std::vector<float>{4});
    auto part = one.comm->split(0, 0);
    part->all_reduce(data, data, 1, DType::f32, ReduceOp::sum);
    EXPECT_EQ(one.get(data, 1), std::vector<float>{4});
  });
}

TEST_F(NcclOnGpu, RejectsRanksThatShareAGpu) {
  net::run_threads(1, [](net::World& world) {
    const auto host = make_communicator(world, world.world_group(), test_options("inproc"));
    EXPECT_EQ(nccl_unsupported_reason(*host, kGpu), "");
  });
  net::run_threads(2, [](net::World& world) {
    const auto host = make_communicator(world, world.world_group(), test_options("inproc"));
    EXPECT_EQ(nccl_unsupported_reason(*host, kGpu).find("ranks 0 and 1 share a GPU"), 0u);
  });
}

}  // namespace
}  // namespace esp::comm
