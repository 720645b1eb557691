#include "esp/net/shm/shm.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/child_process.h"
#include "esp/net/inproc/threads.h"
#include "esp/net/shm/ring_layout.h"
#include "esp/net/shm/segment.h"

namespace esp::net {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

Deadline soon() {
  return Deadline::after_ms(20'000);
}

// Resident bytes of the mapping.
size_t resident_bytes(const SharedSegment& segment) {
  std::vector<unsigned char> pages(segment.bytes() / 4096 + 1);
  EXPECT_EQ(mincore(segment.data(), segment.bytes(), pages.data()), 0);
  size_t count = 0;
  for (unsigned char page : pages) count += page & 1;
  return count * 4096;
}

TEST(SharedSegment, SharesZeroedMemoryBetweenMembers) {
  std::atomic<int> zeros{0};
  run_threads(3, [&](World& world) {
    SharedSegment segment(world, world.world_group(), "test", world.rank == 0 ? kMiB : 0, soon());
    ASSERT_EQ(segment.bytes(), kMiB);
    zeros += segment.data()[1234 + world.rank] == std::byte{0};
    reinterpret_cast<std::atomic<int>*>(segment.data())->fetch_add(world.rank + 1);
    while (reinterpret_cast<std::atomic<int>*>(segment.data())->load() != 6) std::this_thread::yield();
  });
  EXPECT_EQ(zeros, 3);
}

TEST(SharedSegment, SubgroupsUseSeparateSegments) {
  run_threads(4, [](World& world) {
    int side = world.rank % 2;
    Group group{.id = 10 + static_cast<uint64_t>(side), .members = {side, side + 2}, .rank = world.rank / 2};
    SharedSegment segment(world, group, "part", 4096, soon());
    auto* sum = reinterpret_cast<std::atomic<int>*>(segment.data());
    sum->fetch_add(world.rank + 1);
    while (sum->load() < (side == 0 ? 1 + 3 : 2 + 4)) std::this_thread::yield();
    EXPECT_EQ(sum->load(), side == 0 ? 4 : 6);
  });
}

TEST(SharedSegment, RemovesFileNameAfterAllMembersMapSegment) {
  std::string prefix = fmt::format("espalier-{}-", getpid());
  run_threads(2, [&](World& world) {
    SharedSegment segment(world, world.world_group(), "test", kMiB, soon());
    // Member 0 must unlink the name before its constructor returns.
    if (world.rank != 0) return;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      EXPECT_FALSE(entry.path().filename().string().starts_with(prefix)) << entry.path();
  });
}

TEST(SharedSegment, FailsWhenMemberIsLost) {
  auto worlds = thread_worlds(2);
  std::jthread reporter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    worlds[0].peer_status->mark_lost(1, "did not start");
  });
  EXPECT_THROW(SharedSegment(worlds[0], worlds[0].world_group(), "test", kMiB, soon()), CommError);
  std::string prefix = fmt::format("espalier-{}-", getpid());
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    EXPECT_FALSE(entry.path().filename().string().starts_with(prefix)) << entry.path();
}

TEST(SharedSegment, RejectsSizeBeyondFreeMemory) {
  auto worlds = thread_worlds(1);
  try {
    SharedSegment segment(worlds[0], worlds[0].world_group(), "test", size_t{1} << 50, soon());
    FAIL() << "a segment of 1 PiB was created";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("--shm-size"), std::string::npos) << error.what();
  }
}

// If the creator is killed before its peers have opened the segment, its name remains. The next run must remove this
// name and no other.
TEST(SharedSegment, OrphanIsRemovedAfterCreatorIsKilled) {
  ChildProcess creator([](ChildProcess& parent) {
    auto worlds = thread_worlds(2);
    std::jthread opening([&] {
      try {
        SharedSegment segment(worlds[0], worlds[0].world_group(), "test", kMiB, Deadline::after_ms(60'000));
      } catch (const CommError&) {
      }
    });
    worlds[0].store->get("shm/0/test/1", Deadline::after_ms(20'000));
    parent.write_line("published");
    parent.read_line();
  });
  ASSERT_EQ(creator.read_line(), "published");
  std::string prefix = fmt::format("espalier-{}-", creator.pid());
  auto names = [&] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      count += entry.path().filename().string().starts_with(prefix);
    return count;
  };
  EXPECT_EQ(names(), 1);
  remove_orphaned_segments();
  EXPECT_EQ(names(), 1) << "a segment must remain while its creator is alive";
  creator.kill(SIGKILL);
  creator.wait();
  remove_orphaned_segments();  // another process on this host may have removed it already
  EXPECT_EQ(names(), 0);
}

// A creator in another pid namespace seems dead from here. Only its file lock shows that it is alive.
TEST(SharedSegment, KeepsSegmentLockedInAnotherPidNamespace) {
  ChildProcess gone([](ChildProcess&) {});
  const int gone_pid = gone.pid();
  const std::string path = fmt::format("/dev/shm/espalier-{}-1-test", gone_pid);
  gone.wait();
  {
    const std::string temporary = fmt::format("/dev/shm/temporary-{}", gone_pid);
    const Socket held(open(temporary.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    ASSERT_EQ(flock(held.fd(), LOCK_EX), 0);
    std::filesystem::rename(temporary, path);
    remove_orphaned_segments();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  remove_orphaned_segments();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ShmRingLayout, SegmentStaysWithinSizeLimitForEveryGroupSize) {
  for (int size = 1; size <= 256; ++size) {
    size_t bytes = ShmRingLayout::segment_bytes(size, size_t{24} << 30);
    const size_t slot = ShmRingLayout::slot_bytes_in(bytes, size);
    EXPECT_EQ(slot % 64, 0u);
    EXPECT_GE(slot, kMinSlotBytes);
    EXPECT_LE(slot, kMaxSlotBytes);
    EXPECT_TRUE(size > 64 || bytes <= kBulkBytes + 32 * kMiB) << size;
  }
  EXPECT_EQ(ShmRingLayout::slot_bytes_in(ShmRingLayout::segment_bytes(2, size_t{24} << 30), 2), kMaxSlotBytes);
  // A container's 64 MiB limit must give smaller slots, not a crash.
  EXPECT_LE(ShmRingLayout::segment_bytes(8, 64 * kMiB), 32 * kMiB);
}

TEST(ShmRingLayout, IdleGroupUsesFewPages) {
  auto worlds = thread_worlds(1);
  Group alone = worlds[0].world_group();
  SharedSegment segment(worlds[0], alone, "test", ShmRingLayout::segment_bytes(64, size_t{24} << 30), soon());
  ShmRingLayout lanes(segment.data(), segment.bytes(), 64);
  // Every pair of 64 ranks exchanges one small message: this touches one page per lane and no slots.
  for (int from = 0; from < 64; ++from)
    for (int to = 0; to < 64; ++to)
      if (from != to) lanes.cells(from, to)->turn.store(1);
  EXPECT_LE(resident_bytes(segment), 17 * kMiB);
}

// Opening a group a second time gives an independent transport: a message sent on one does not arrive on the other.
TEST(Shm, OpensIndependentTransportsForOneGroup) {
  run_threads(2, [](World& world) {
    auto first = open_shm(world, world.world_group());
    auto second = open_shm(world, world.world_group());
    std::byte a{1}, b{2};
    Transfer on_first{.peer = 1 - world.rank, .data = &a, .bytes = 1};
    Transfer on_second{.peer = 1 - world.rank, .data = &b, .bytes = 1};
    if (world.rank == 0) {
      first->send(on_first);
      second->send(on_second);
      return;
    }
    a = b = std::byte{0};
    second->receive(on_second);
    first->receive(on_first);
    Deadline deadline = soon();
    for (auto* transport : {second.get(), first.get()})
      while (!transport->poll() && !deadline.passed()) transport->sleep(deadline);
    EXPECT_EQ(a, std::byte{1});
    EXPECT_EQ(b, std::byte{2});
  });
}

}  // namespace
}  // namespace esp::net
