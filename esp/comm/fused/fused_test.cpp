// Compares every call on every rank with reference loops over the inputs of all members, which every rank can generate.
#include "esp/comm/fused/fused_collectives.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <csignal>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/half.h"
#include "esp/base/rng.h"
#include "esp/comm/fused/test_ranks.h"

namespace esp::comm {
namespace {

using testing::fork_ranks;
using testing::group_of;
using testing::thread_ranks;

using Bytes = std::vector<std::byte>;

Deadline soon() {
  return Deadline::after_ms(10'000);
}

// Writes the value of element `index` of `rank`'s input: arbitrary bits for integers, values around one for floating
// types.
void put(std::byte* at, DType dtype, int rank, size_t index) {
  uint64_t bits = random_bits(11, static_cast<uint64_t>(rank), index);
  double value = random_unit(12, static_cast<uint64_t>(rank), index) * 3 - 1;
  auto store = [&](auto element) { std::memcpy(at, &element, sizeof element); };
  switch (dtype) {
    case DType::f64:
      return store(value);
    case DType::f32:
      return store(static_cast<float>(value));
    case DType::bf16:
      return store(BFloat16(static_cast<float>(value)));
    case DType::f16:
      return store(Float16(static_cast<float>(value)));
    default:
      std::memcpy(at, &bits, size_of(dtype));
  }
}

Bytes input_of(DType dtype, int rank, size_t count) {
  Bytes bytes(count * size_of(dtype));
  for (size_t i = 0; i < count; ++i) put(bytes.data() + i * size_of(dtype), dtype, rank, i);
  return bytes;
}

class Checker {
 public:
  Checker(net::World& world, const FusedTuning& tuning, bool registered = false)
      : world_(world),
        fused_(FusedCollectives::open(world, group_of(world), soon(), tuning)),
        registered_(registered) {}

  FusedCollectives& fused() { return *fused_; }
  int rank() const { return world_.rank; }
  int size() const { return world_.size; }

  void run(const Call& call) { fused_->run(call, tag(call), soon()); }
  net::Tag tag(const Call& call) { return tag_of(call, ++sequence_, 0); }

  // Runs the call with a full logical buffer of `count` elements. Returns a description of the first wrong element, or
  // "".
  std::string check(Op op, DType dtype, ReduceOp reduce, size_t count, int root, bool in_place) {
    if (op == Op::all_to_all) count = count / static_cast<size_t>(size()) * static_cast<size_t>(size());
    size_t element = size_of(dtype);
    Call call{.op = op, .count = count, .dtype = dtype, .reduce = reduce, .root = root};
    BufferBytes extent = buffer_bytes_of(call, rank(), size());
    Chunk own = chunk_of(count, size(), rank());
    Bytes whole = input_of(dtype, rank(), count);
    const std::byte* given = whole.data();
    bool by_chunk = op == Op::all_gather || op == Op::gather;
    if (by_chunk) given += own.offset * element;

    auto first = buffer(count * element), second = buffer(count * element);
    auto* in = static_cast<std::byte*>(first.get());
    auto* out = static_cast<std::byte*>(second.get());
    if (in_place) {
      out = in;
      if (by_chunk && extent.out_bytes > 0) in += own.offset * element;
      if (op == Op::reduce_scatter || (op == Op::scatter && rank() == root)) out += own.offset * element;
    }
    if (extent.in_bytes > 0) std::memcpy(in, given, extent.in_bytes);
    call.in = in;
    call.out = out;
    run(call);
    Bytes wanted = expected(call);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i] != out[i])
        return fmt::format("{} root {} in place {}: byte {} of {} differs on rank {} of {}", describe(call), root,
                           in_place, i, wanted.size(), rank(), size());
    return "";
  }

 private:
  std::shared_ptr<void> buffer(size_t bytes) {
    if (registered_) return fused_->allocate(bytes + 1, soon());
    return {std::malloc(bytes + 1), std::free};
  }

  Bytes expected(const Call& call) {
    size_t element = size_of(call.dtype);
    BufferBytes extent = buffer_bytes_of(call, rank(), size());
    Chunk own = chunk_of(call.count, size(), rank());
    std::vector<Bytes> inputs;
    for (int k = 0; k < size(); ++k) inputs.push_back(input_of(call.dtype, k, call.count));
    Bytes result(call.count * element);
    auto cut = [&](size_t begin, size_t bytes) {
      return Bytes(result.begin() + static_cast<ptrdiff_t>(begin),
                   result.begin() + static_cast<ptrdiff_t>(begin + bytes));
    };
    if (extent.out_bytes == 0) return {};
    switch (call.op) {
      case Op::all_reduce:
      case Op::reduce:
      case Op::reduce_scatter: {
        std::vector<const void*> sources;
        for (auto& input : inputs) sources.push_back(input.data());
        kernel::ref::reduce_ordered(result.data(), sources.data(), size(), call.count, call.dtype, call.reduce);
        if (call.reduce == ReduceOp::avg) kernel::ref::divide(result.data(), call.count, call.dtype, size());
        return call.op == Op::reduce_scatter ? cut(own.offset * element, own.count * element) : result;
      }
      case Op::broadcast:
        return inputs[static_cast<size_t>(call.root)];
      case Op::scatter:
        result = inputs[static_cast<size_t>(call.root)];
        return cut(own.offset * element, own.count * element);
      case Op::all_to_all:
        for (int k = 0; k < size(); ++k)
          std::memcpy(result.data() + static_cast<size_t>(k) * own.count * element,
                      inputs[static_cast<size_t>(k)].data() + own.offset * element, own.count * element);
        return result;
      default:  // all_gather and gather
        for (int k = 0; k < size(); ++k) {
          Chunk chunk = chunk_of(call.count, size(), k);
          if (chunk.count > 0)
            std::memcpy(result.data() + chunk.offset * element,
                        inputs[static_cast<size_t>(k)].data() + chunk.offset * element, chunk.count * element);
        }
        return result;
    }
  }

  net::World& world_;
  std::unique_ptr<FusedCollectives> fused_;
  bool registered_;
  uint64_t sequence_ = 0;
};

constexpr Op kMovers[] = {Op::broadcast, Op::all_gather, Op::all_to_all, Op::gather, Op::scatter};
constexpr Op kReducers[] = {Op::all_reduce, Op::reduce, Op::reduce_scatter};

// Small blocks, so that pipelines have many steps. The rows cover both cached and streaming (non-temporal) stores. The
// last row has the default tuning.
constexpr FusedTuning kTunings[] = {
    {.copy_policy = CopyPolicy::staged, .small_bytes = 512, .block_bytes = 4096, .stream_from = 1},
    {.copy_policy = CopyPolicy::streamed,
     .small_bytes = 512,
     .block_bytes = 4096,
     .stream_from = size_t{1} << 40,
     .lag = 2},
    {},
};

std::string check_sizes(net::World& world, const FusedTuning& tuning, bool registered) {
  Checker checker(world, tuning, registered);
  int root = world.size - 1;
  for (size_t count : {0, 1, 61, 1021, 20011}) {
    for (bool in_place : {false, true}) {
      for (Op op : kMovers)
        if (auto wrong = checker.check(op, DType::f32, ReduceOp::sum, count, root, in_place); !wrong.empty())
          return wrong;
      for (Op op : kReducers)
        for (DType dtype : {DType::f32, DType::bf16})
          if (auto wrong = checker.check(op, dtype, ReduceOp::avg, count, root, in_place); !wrong.empty()) return wrong;
    }
    root = (root + 1) % world.size;
  }
  return "";
}

TEST(FusedCollectives, ProcessesMatchReferenceLoops) {
  for (int size : {1, 2, 3, 5, 8, 17})
    for (auto& tuning : std::span(kTunings).first(size > 5 ? 1 : 3))
      EXPECT_EQ(fork_ranks(size, [&](net::World& world) { return check_sizes(world, tuning, false); }), "") << size;
}

TEST(FusedCollectives, ThreadsMatchReferenceLoops) {
  for (int size : {2, 3, 8})
    for (auto& tuning : kTunings)
      EXPECT_EQ(thread_ranks(size, [&](net::World& world) { return check_sizes(world, tuning, false); }), "") << size;
}

TEST(FusedCollectives, RegisteredMemoryMatchesReferenceLoops) {
  for (int size : {2, 3})
    EXPECT_EQ(fork_ranks(size, [&](net::World& world) { return check_sizes(world, kTunings[0], true); }), "") << size;
}

TEST(FusedCollectives, ReducesEveryElementTypeWithEveryReduction) {
  auto body = [](net::World& world) -> std::string {
    Checker checker(world, kTunings[0]);
    for (DType dtype : kAllDTypes)
      for (ReduceOp reduce : kernel::kAllReduceOps)
        for (Op op : kReducers)
          for (size_t count : {3, 2003})
            if (auto wrong = checker.check(op, dtype, reduce, count, 1, false); !wrong.empty()) return wrong;
    return "";
  };
  EXPECT_EQ(fork_ranks(3, body), "");
  EXPECT_EQ(fork_ranks(4, body), "");
}

TEST(FusedCollectives, SynchronisesSixtyFourRanks) {
  auto body = [](net::World& world) -> std::string {
    Checker checker(world, {});
    for (size_t count : {5, 3001})
      if (auto wrong = checker.check(Op::all_reduce, DType::i32, ReduceOp::sum, count, 0, true); !wrong.empty())
        return wrong;
    return "";
  };
  EXPECT_EQ(fork_ranks(64, body), "");
}

// Rank r sends (r + 2k) % 5 · scale elements to rank k; segments are laid out from the back to the front.
struct Irregular {
  std::vector<size_t> send_counts, send_offsets, receive_counts, receive_offsets;
  std::vector<int32_t> in, out;
};

Irregular irregular(int rank, int size, size_t scale) {
  Irregular made;
  auto amount = [&](int from, int to) { return static_cast<size_t>((from + 2 * to) % 5) * scale; };
  auto n = static_cast<size_t>(size);
  made.send_offsets.resize(n);
  made.receive_offsets.resize(n);
  size_t sent = 0, received = 0;
  for (int k = 0; k < size; ++k) {
    made.send_counts.push_back(amount(rank, k));
    made.receive_counts.push_back(amount(k, rank));
  }
  for (size_t k = n; k-- > 0;) {
    made.send_offsets[k] = sent;
    made.receive_offsets[k] = received;
    sent += made.send_counts[k];
    received += made.receive_counts[k];
  }
  made.in.resize(sent + 1);
  made.out.resize(received + 1, -1);
  for (size_t k = 0; k < n; ++k)
    for (size_t i = 0; i < made.send_counts[k]; ++i)
      made.in[made.send_offsets[k] + i] =
          static_cast<int32_t>(1'000'000 * rank + 10'000 * static_cast<int>(k) + static_cast<int>(i));
  return made;
}

std::string check_irregular(net::World& world, bool in_place) {
  Checker checker(world, kTunings[0]);
  for (size_t scale : {1, 700}) {
    Irregular made = irregular(world.rank, world.size, scale);
    if (in_place) {
      made.out.resize(std::max(made.in.size(), made.out.size()));
      std::copy(made.in.begin(), made.in.end(), made.out.begin());
    }
    Call call{.op = Op::all_to_all_v,
              .in = in_place ? made.out.data() : made.in.data(),
              .out = made.out.data(),
              .dtype = DType::i32,
              .send_counts = made.send_counts,
              .send_offsets = made.send_offsets,
              .recv_counts = made.receive_counts,
              .recv_offsets = made.receive_offsets};
    checker.run(call);
    for (int k = 0; k < world.size; ++k)
      for (size_t i = 0; i < made.receive_counts[static_cast<size_t>(k)]; ++i)
        if (made.out[made.receive_offsets[static_cast<size_t>(k)] + i] !=
            static_cast<int32_t>(1'000'000 * k + 10'000 * world.rank + static_cast<int>(i)))
          return fmt::format("element {} from {} is wrong on {}", i, k, world.rank);
  }
  return "";
}

TEST(FusedCollectives, AllToAllVDeliversIrregularCounts) {
  for (bool in_place : {false, true}) {
    for (int size : {2, 3, 7})
      EXPECT_EQ(fork_ranks(size, [&](net::World& world) { return check_irregular(world, in_place); }), "");
    EXPECT_EQ(thread_ranks(3, [&](net::World& world) { return check_irregular(world, in_place); }), "");
  }
}

// Runs a call that must throw a CommError of this kind with both words in its text.
std::string expect_error(CommError::Kind kind, const std::string& a, const std::string& b,
                         const std::function<void()>& action) {
  try {
    action();
  } catch (const CommError& error) {
    std::string text = error.what();
    if (error.kind() == kind && text.find(a) != std::string::npos && text.find(b) != std::string::npos) return "";
    return "another error: " + text;
  }
  return "no error";
}

TEST(FusedCollectives, ReportsMismatchedCountToEveryRank) {
  for (size_t count : {10, 50'000}) {
    auto body = [&](net::World& world) {
      Checker checker(world, {});
      std::vector<float> data(60'000);
      Call call{
          .op = Op::all_reduce, .in = data.data(), .out = data.data(), .count = world.rank == 1 ? count + 1 : count};
      return expect_error(CommError::Kind::mismatch, "rank 1", std::to_string(count + 1), [&] { checker.run(call); });
    };
    EXPECT_EQ(fork_ranks(2, body), "");
    EXPECT_EQ(thread_ranks(2, body), "");
  }
}

// The root changes; each root runs ahead while the other ranks wait for random times. No data may be overwritten before
// it is read.
TEST(FusedCollectives, EagerDataArrivesInOrderWhenRootIsAhead) {
  auto body = [](net::World& world) -> std::string {
    Checker checker(world, {});
    constexpr Op kRooted[] = {Op::broadcast, Op::broadcast, Op::gather, Op::scatter, Op::reduce};
    for (int i = 0; i < 400; ++i) {
      if (random_bits(5, static_cast<uint64_t>(world.rank), static_cast<uint64_t>(i)) % 40 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      // The root changes every 40 calls, the op every 20; every 97th call is an all_reduce, in which all ranks wait.
      Op op = i % 97 == 96 ? Op::all_reduce : kRooted[i / 20 % 5];
      auto wrong =
          checker.check(op, DType::i32, ReduceOp::sum, static_cast<size_t>(i % 64), i / 40 % world.size, i % 2);
      if (!wrong.empty()) return wrong;
    }
    return "";
  };
  for (int size : {2, 3, 5}) {
    EXPECT_EQ(fork_ranks(size, body), "") << size;
    EXPECT_EQ(thread_ranks(size, body), "") << size;
  }
}

// The root of a broadcast does not wait. It detects a mismatching call later: when its lead is used up, or in a call
// that waits for all ranks.
TEST(FusedCollectives, ReportsMismatchedBroadcastToEveryRank) {
  for (Op next : {Op::broadcast, Op::barrier}) {
    auto body = [&](net::World& world) {
      Checker checker(world, {});
      std::vector<float> data(64);
      Call call{.op = Op::broadcast, .in = data.data(), .out = data.data(), .count = world.rank == 2 ? 11u : 10u};
      return expect_error(CommError::Kind::mismatch, "rank 2", "11", [&] {
        checker.run(call);
        for (int k = 0; k < 100; ++k) checker.run(next == Op::barrier ? Call{.op = Op::barrier} : call);
      });
    };
    EXPECT_EQ(fork_ranks(3, body), "");
    EXPECT_EQ(thread_ranks(3, body), "");
  }
}

// On one core the latency probe is skipped; the results must still be correct.
TEST(FusedCollectives, RanksOnOneCoreMatchReferenceLoops) {
  auto body = [](net::World& world) -> std::string {
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0) return "cannot read the CPU affinity";
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
      if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) return "cannot set the CPU affinity to one core";
    return check_sizes(world, {}, false);
  };
  EXPECT_EQ(fork_ranks(3, body), "");
}

TEST(FusedCollectives, AllToAllVMismatchNamesBothRanks) {
  auto body = [](net::World& world) {
    Checker checker(world, {});
    std::vector<size_t> ones(3, 1), offsets{0, 1, 2}, expected(3, 1);
    if (world.rank == 2) expected[0] = 4;
    std::vector<int32_t> in(3), out(16);
    Call call{.op = Op::all_to_all_v,
              .in = in.data(),
              .out = out.data(),
              .dtype = DType::i32,
              .send_counts = ones,
              .send_offsets = offsets,
              .recv_counts = expected,
              .recv_offsets = offsets};
    return expect_error(CommError::Kind::mismatch, "rank 0 sends 4 bytes", "rank 2, which expects 16",
                        [&] { checker.run(call); });
  };
  EXPECT_EQ(fork_ranks(3, body), "");
}

TEST(FusedCollectives, NamesStoppedRankAtDeadline) {
  auto body = [](net::World& world) -> std::string {
    Checker checker(world, {});
    checker.run({.op = Op::barrier});
    if (world.rank == 1) return "";  // rank 1 makes no further call
    Call call{.op = Op::barrier};
    return expect_error(CommError::Kind::timeout, "rank 1", "never entered",
                        [&] { checker.fused().run(call, checker.tag(call), Deadline::after_ms(100)); });
  };
  EXPECT_EQ(fork_ranks(3, body), "");
}

TEST(FusedCollectives, WaitEndsWhenRankIsLost) {
  auto body = [](net::World& world) -> std::string {
    Checker checker(world, {});
    checker.run({.op = Op::barrier});
    if (world.rank == 2) raise(SIGKILL);
    // In a real world the failure detector marks a rank as lost. Here a thread marks it, after the waiting ranks have
    // gone to sleep.
    std::thread reporter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world.peer_status->mark_lost(2, "was killed");
    });
    std::vector<float> data(100'000);
    Call call{.op = Op::all_reduce, .in = data.data(), .out = data.data(), .count = data.size()};
    auto error_text = expect_error(CommError::Kind::lost, "rank 2", "was killed", [&] { checker.run(call); });
    reporter.join();
    return error_text;
  };
  EXPECT_EQ(fork_ranks(3, body, 2), "");
}

// Rank 9 has failed, and a member of the group leaves normally because of it. A rank that waits for this member must
// report the failure of rank 9.
TEST(FusedCollectives, WaitEndsWhenRankHasLeft) {
  for (bool asleep : {false, true}) {
    auto body = [asleep](net::World& world) -> std::string {
      Checker checker(world, {});
      checker.run({.op = Op::barrier});
      if (world.rank == 1) return "";
      std::thread reporter([&] {
        if (asleep) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        world.peer_status->mark_lost(9, "was killed");  // rank 9 belongs to the world but not to this group
        world.peer_status->mark_left(1);
      });
      if (!asleep) reporter.join();
      std::vector<float> data(100);
      Call call{.op = Op::all_reduce, .in = data.data(), .out = data.data(), .count = data.size()};
      auto error_text =
          expect_error(CommError::Kind::lost, "rank 1 has left", "rank 9 was killed", [&] { checker.run(call); });
      if (asleep) reporter.join();
      return error_text;
    };
    EXPECT_EQ(fork_ranks(3, body), "") << asleep;
  }
}

TEST(FusedCollectives, ReleasesSharedMemory) {
  auto segments = [] {
    int count = 0;
    for (auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      count += entry.path().filename().string().rfind(fmt::format("espalier-{}-", getpid()), 0) == 0;
    return count;
  };
  auto body = [](net::World& world) -> std::string {
    Checker checker(world, {}, true);
    return checker.check(Op::all_reduce, DType::f32, ReduceOp::sum, 50'000, 0, false);
  };
  EXPECT_EQ(thread_ranks(3, body), "");
  EXPECT_EQ(segments(), 0);
}

TEST(FusedCollectives, RegisteredMemoryOutlivesCommunicator) {
  auto body = [](net::World& world) -> std::string {
    std::shared_ptr<void> memory;
    {
      Checker checker(world, {});
      memory = checker.fused().allocate(1000, soon());
    }
    std::memset(memory.get(), 1, 1000);
    return "";
  };
  EXPECT_EQ(fork_ranks(2, body), "");
}

}  // namespace
}  // namespace esp::comm
