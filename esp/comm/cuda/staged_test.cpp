// Tests of the staged communicator (comm/staged.h). The ranks are threads that share one GPU. Without a GPU the tests
// are skipped.
#include "esp/comm/staged.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

using namespace std::chrono_literals;
constexpr device::Device kGpu{device::DeviceKind::cuda, 0};

// The GPU context, the communicator and the test data of one rank.
struct GpuRank {
  explicit GpuRank(net::World& world)
      : number(world.rank),
        comm(make_staged(make_communicator(world, world.world_group(), test_options("inproc")), stream, account)) {}

  int* put(const std::vector<int>& values) {
    auto* there = reinterpret_cast<int*>(
        pool.take(std::max<size_t>(values.size(), 1) * sizeof(int), device::MemoryCategory::other)->data);
    device::copy(there, values.data(), values.size() * sizeof(int), stream);
    return there;
  }
  std::vector<int> get(const int* there, size_t count) {
    std::vector<int> values(count);
    device::copy(values.data(), there, count * sizeof(int), stream);
    device::finish(stream);
    return values;
  }

  int number;
  device::MemoryAccount account;
  std::unique_ptr<device::SegmentSource> source = device::gpu_memory(kGpu);
  device::MemoryPool pool{account, device::MemoryTier::device, *source};
  device::GpuQueue queue{kGpu, &account};
  device::Stream stream = queue.stream();
  std::unique_ptr<Communicator> comm;
};

class StagedCommunicator : public testing::Test {
 protected:
  void SetUp() override {
    if (device::survey_gpus().gpus.empty()) GTEST_SKIP() << device::survey_gpus().problem;
  }
  static void with_ranks(int size, const std::function<void(GpuRank&)>& body) {
    net::run_threads(size, [&](net::World& world) {
      GpuRank rank(world);
      body(rank);
    });
  }
};

TEST_F(StagedCommunicator, SumsInPlaceWhileStreamIsBusy) {
  with_ranks(3, [](GpuRank& r) {
    constexpr size_t kCount = 100'001;
    int* data = r.put(std::vector<int>(kCount, r.number + 1));
    Call call;
    call.op = Op::all_reduce;
    call.in = call.out = data;
    call.count = kCount;
    call.dtype = DType::i32;
    const Work work = r.comm->start(call);
    int* other = r.put({5});  // later work on the compute stream runs during the call
    work.wait(Deadline::after(60s));
    EXPECT_EQ(r.get(data, kCount), std::vector<int>(kCount, 6));
    EXPECT_EQ(r.get(other, 1), std::vector<int>{5});
  });
}

TEST_F(StagedCommunicator, GathersAndScattersWithinOneBuffer) {
  with_ranks(2, [](GpuRank& r) {
    int* all = r.put({-1, -1, -1, -1});
    int* mine = all + 2 * r.number;
    const std::vector<int> own = {10 * r.number, 10 * r.number + 1};
    device::copy(mine, own.data(), 2 * sizeof(int), r.stream);
    r.comm->all_gather(mine, all, 2, DType::i32);
    EXPECT_EQ(r.get(all, 4), (std::vector<int>{0, 1, 10, 11}));
    r.comm->reduce_scatter(all, mine, 2, DType::i32, ReduceOp::sum);
    EXPECT_EQ(r.get(mine, 2), (r.number ? std::vector<int>{20, 22} : std::vector<int>{0, 2}));
  });
}

TEST_F(StagedCommunicator, AllToAllVLeavesGapsInOutputUntouched) {
  with_ranks(2, [](GpuRank& r) {
    const std::vector<size_t> counts = {1, 2}, offsets = {0, 3};
    const std::vector<size_t> received(2, counts[static_cast<size_t>(r.number)]), places = {0, 4};
    int* out = r.put(std::vector<int>(8, -1));
    Call call;
    call.op = Op::all_to_all_v;
    call.in = r.put({100 * r.number, 0, 0, 100 * r.number + 3, 100 * r.number + 4});
    call.out = out;
    call.dtype = DType::i32;
    call.send_counts = counts;
    call.send_offsets = offsets;
    call.recv_counts = received;
    call.recv_offsets = places;
    r.comm->run(call);
    EXPECT_EQ(r.get(out, 8), (r.number ? std::vector<int>{3, 4, -1, -1, 103, 104, -1, -1}
                                       : std::vector<int>{0, -1, -1, -1, 100, -1, -1, -1}));
  });
}

TEST_F(StagedCommunicator, GroupsMessagesAndPassesHostMemoryThrough) {
  with_ranks(2, [](GpuRank& r) {
    int* in = r.put({0});
    const int* out = r.put({40 + r.number});
    Call send, recv;
    send.op = Op::send;
    send.in = out;
    recv.op = Op::recv;
    recv.out = in;
    send.count = recv.count = 1;
    send.dtype = recv.dtype = DType::i32;
    send.root = recv.root = 1 - r.number;
    const std::vector<Call> calls = {send, recv};
    r.comm->start_group(calls).wait(Deadline::after(60s));
    EXPECT_EQ(r.get(in, 1), std::vector<int>{41 - r.number});
    double host = r.number;
    r.comm->all_reduce(&host, &host, 1, DType::f64, ReduceOp::sum);
    EXPECT_EQ(host, 1);
  });
}

TEST_F(StagedCommunicator, StagesCallsOfSplitCommunicators) {
  with_ranks(4, [](GpuRank& r) {
    auto pair = r.comm->split(r.number / 2, r.number);
    int* data = r.put({1 << r.number});
    pair->all_reduce(data, data, 1, DType::i32, ReduceOp::sum);
    EXPECT_EQ(r.get(data, 1), std::vector<int>{r.number < 2 ? 3 : 12});
  });
}

}  // namespace
}  // namespace esp::comm
