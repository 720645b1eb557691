// Collectives between processes. Creating and destroying communicators must leak no resources.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include <fmt/format.h>

#include "esp/net/inproc/threads.h"
#include "esp/net/mpi/mpi.h"
#include "esp/net/virtual/network.h"
#include "tests/multiproc/job.h"

namespace esp::multiproc {
namespace {

using namespace std::chrono_literals;

JobOptions job_options(const std::string& transport, int size) {
  JobOptions options;
  options.size = size;
  options.comm.transport = transport;
  options.comm.timeout = 60s;
  return options;
}

class ProcessCollectives : public testing::TestWithParam<const char*> {};

// Runs every collective and checks its result. Called for every transport.
void all_ops(comm::Communicator& comm) {
  int rank = comm.rank(), size = comm.size();
  auto n = static_cast<size_t>(size);
  auto require = [&](bool holds, const char* what) {
    if (!holds) throw std::runtime_error(fmt::format("rank {}: wrong {}", rank, what));
  };
  for (size_t count : {size_t{1}, size_t{1000}, size_t{300'000}}) {
    std::vector<int64_t> in(count), out(count, -1), wide(count * n, -1), blocks(count * n);
    for (size_t i = 0; i < count; ++i) in[i] = static_cast<int64_t>(i) * 10 + rank;
    for (size_t i = 0; i < count * n; ++i) blocks[i] = static_cast<int64_t>(i) + 1000 * rank;
    int64_t ranks = size * (size - 1) / 2;

    comm.all_reduce(in.data(), out.data(), count, DType::i64, comm::ReduceOp::sum);
    for (size_t i = 0; i < count; ++i) require(out[i] == static_cast<int64_t>(i) * 10 * size + ranks, "all_reduce");
    comm.all_gather(in.data(), wide.data(), count, DType::i64);
    for (size_t i = 0; i < count * n; ++i)
      require(wide[i] == static_cast<int64_t>(i % count) * 10 + static_cast<int64_t>(i / count), "all_gather");
    comm.reduce_scatter(blocks.data(), out.data(), count, DType::i64, comm::ReduceOp::sum);
    for (size_t i = 0; i < count; ++i)
      require(out[i] == static_cast<int64_t>(static_cast<size_t>(rank) * count + i) * size + 1000 * ranks,
              "reduce_scatter");
    comm.all_to_all(blocks.data(), wide.data(), count, DType::i64);
    for (size_t i = 0; i < count * n; ++i)
      require(wide[i] == static_cast<int64_t>(static_cast<size_t>(rank) * count + i % count) +
                             1000 * static_cast<int64_t>(i / count),
              "all_to_all");
    int root = size - 1;
    out = in;
    comm.broadcast(out.data(), count, DType::i64, root);
    require(out[0] == root && out[count - 1] == static_cast<int64_t>(count - 1) * 10 + root, "broadcast");
    comm.reduce(in.data(), out.data(), count, DType::i64, comm::ReduceOp::max, root);
    if (rank == root) require(out[count - 1] == static_cast<int64_t>(count - 1) * 10 + size - 1, "reduce");
    comm.gather(in.data(), wide.data(), count, DType::i64, root);
    if (rank == root) require(wide[count] == 1, "gather");
    comm.scatter(blocks.data(), out.data(), count, DType::i64, root);
    require(out[0] == static_cast<int64_t>(static_cast<size_t>(rank) * count) + 1000 * root, "scatter");
    if (rank == 0) comm.send(in.data(), count, DType::i64, root);
    if (rank == root) comm.recv(out.data(), count, DType::i64, 0);
    if (rank == root) require(out[count - 1] == static_cast<int64_t>(count - 1) * 10, "send and recv");
  }
  comm.signal((rank + 1) % size);
  comm.wait((rank + size - 1) % size);
  auto half = comm.split(rank % 2, 0);
  int32_t least = rank;
  half->all_reduce(&least, &least, 1, DType::i32, comm::ReduceOp::min);
  require(least == rank % 2, "split");
  auto memory = comm.allocate(4096);
  auto* shared = static_cast<float*>(memory.get());
  for (int i = 0; i < 1024; ++i) shared[i] = 1.0f;
  comm.all_reduce(shared, shared, 1024, DType::f32, comm::ReduceOp::sum);
  require(shared[1023] == static_cast<float>(size), "all_reduce in shared memory");
  comm.barrier();
}

TEST_P(ProcessCollectives, ReturnCorrectResults) {
  for (int size : {2, 3, 5}) {
    Job job(job_options(GetParam(), size), [](RankContext& self) { all_ops(self.comm); });
    job.expect_all("bye");
  }
}

TEST_P(ProcessCollectives, ReleaseDescriptorsThreadsAndSegments) {
  Job job(job_options(GetParam(), 3), [&](RankContext& self) {
    auto use = [&] {
      auto child = self.comm.split(0, 0);
      std::vector<float> data(100'000, 1.0f);
      child->all_reduce(data.data(), data.data(), data.size(), DType::f32, comm::ReduceOp::sum);
      comm::Call call;
      call.op = comm::Op::all_reduce;
      call.in = call.out = data.data();
      call.count = data.size();
      child->start(call).wait(Deadline::after(60s));
      auto memory = child->allocate(1 << 20);
      child->barrier();
      self.comm.barrier();
    };
    use();  // the first call allocates resources that the process keeps
    int descriptors = num_open_descriptors(), threads = num_threads();
    for (int i = 0; i < 5; ++i) use();
    self.comm.barrier();
    // Waits, because peers may close their ends of connections a little later.
    Deadline deadline = Deadline::after(10s);
    while ((num_open_descriptors() > descriptors || num_threads() > threads) && !deadline.passed())
      std::this_thread::sleep_for(1ms);
    if (num_open_descriptors() > descriptors || num_threads() > threads)
      throw std::runtime_error(fmt::format("open descriptors: {} before, {} after; threads: {} before, {} after",
                                           descriptors, num_open_descriptors(), threads, num_threads()));
  });
  std::vector<int> pids;
  for (int r = 0; r < job.size(); ++r) pids.push_back(job.rank(r).pid());
  job.expect_all("bye");
  EXPECT_EQ(segments_of(pids), std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(Transports, ProcessCollectives, testing::Values("auto", "shm", "tcp"),
                         [](const auto& row) { return row.param; });

class ThreadCollectives : public testing::TestWithParam<const char*> {};

TEST_P(ThreadCollectives, ReturnCorrectResults) {
  for (int size : {2, 3, 5})
    net::run_threads(size, [&](net::World& world) {
      auto comm = comm::make_communicator(world, world.world_group(), job_options(GetParam(), size).comm);
      all_ops(*comm);
    });
}

INSTANTIATE_TEST_SUITE_P(Transports, ThreadCollectives, testing::Values("auto", "inproc"),
                         [](const auto& row) { return row.param; });

// Runs only if mpirun started this process as one of three ranks. CMakeLists.txt excludes it from the other test runs.
TEST(Mpirun, RunsEveryCollective) {
  std::string_view flavour = net::mpi_flavour(std::getenv);
  ASSERT_FALSE(flavour.empty()) << "start this test with mpirun -n 3";
  auto world = net::mpi_world(flavour, {}, Log());
  EXPECT_EQ(world->size, 3);
  auto comm = comm::make_communicator(*world, world->world_group(), job_options("mpi", world->size).comm);
  all_ops(*comm);
  for (const comm::CallStats& row : comm->stats()) EXPECT_EQ(row.transport, "mpi") << name_of(row.op);
}

TEST(VirtualClock, RunsEveryCollective) {
  for (int size : {2, 3, 5}) {
    auto network = net::VirtualNetwork::flat(size, {1'000'000, 80});
    net::run_threads(
        size,
        [&](net::World& world) {
          auto comm = comm::make_communicator(world, world.world_group(), job_options("virtual", size).comm);
          all_ops(*comm);
        },
        {}, network);
  }
}

}  // namespace
}  // namespace esp::multiproc
