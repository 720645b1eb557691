#include "esp/sync/tier/block_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "esp/obs/temporary_folder.h"
#include "esp/sync/tier/testing.h"

namespace esp::sync {
namespace {

using device::MemoryAccount;
using device::MemoryCategory;
using device::MemoryTier;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Block-aligned memory that contains a test pattern.
struct BlockBuffers {
  explicit BlockBuffers(size_t count, int seed = 0)
      : data(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, count * kBlockBytes)), &std::free),
        bytes(count * kBlockBytes) {
    for (size_t i = 0; i < bytes; ++i) data.get()[i] = static_cast<std::byte>((i * 31 + i / 4096 + 7) * seed);
  }
  std::span<std::byte> span(size_t first, size_t count) const {
    return {data.get() + first * kBlockBytes, count * kBlockBytes};
  }
  std::span<std::byte> all() const { return {data.get(), bytes}; }
  bool operator==(const BlockBuffers& other) const {
    return bytes == other.bytes && std::memcmp(data.get(), other.data.get(), bytes) == 0;
  }
  std::unique_ptr<std::byte, decltype(&std::free)> data;
  size_t bytes;
};

FileOptions options_in(const std::string& folder, const std::string& io = "auto") {
  FileOptions options;
  options.folder = folder;
  options.io = io;
  return options;
}

size_t num_files(const std::string& folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

struct BlockStoreFileTest : testing::Test {
  obs::TemporaryFolder folder;
  MemoryAccount account;
};

// Runs with both I/O backends.
struct BlockStoreTest : BlockStoreFileTest, testing::WithParamInterface<const char*> {
  void SetUp() override {
    std::string why;
    if (GetParam() == std::string("uring") && !make_uring_io(-1, 8, why)) GTEST_SKIP() << why;
  }
};

TEST_P(BlockStoreTest, ReadsBackBlocksWrittenWithManyRequestsInFlight) {
  // 75 transfers of 5 MiB and a remainder: more chunks than either backend has slots.
  constexpr size_t kPieces = 75, kEach = 1283;
  BlockStore store(account, options_in(folder.path(), GetParam()), "t", kPieces * kEach * kBlockBytes);
  EXPECT_EQ(store.io_name(), GetParam());
  EXPECT_EQ(num_files(folder.path()), 0u);  // no file is visible: the store unlinked it
  const BlockBuffers out(kPieces * kEach, 5);
  BlockBuffers in(kPieces * kEach);
  std::vector<BlockStore::Ticket> tickets;
  for (size_t i = 0; i < kPieces; ++i)
    tickets.push_back(store.write(i * kEach * kBlockBytes, out.span(i * kEach, kEach)));
  for (size_t i = kPieces; i-- > 0;) store.wait(tickets[i]);
  for (size_t i = 0; i < kPieces; ++i) tickets[i] = store.read(i * kEach * kBlockBytes, in.span(i * kEach, kEach));
  for (const auto ticket : tickets) store.wait(ticket);
  EXPECT_TRUE(in == out);
  EXPECT_EQ(store.bytes_written(), out.bytes);
  EXPECT_EQ(store.bytes_read(), in.bytes);
}

TEST_P(BlockStoreTest, StartsWithZerosAndRoundsSizeUpToBlocks) {
  BlockStore store(account, options_in(folder.path(), GetParam()), "t", 2 * kBlockBytes + 1);
  EXPECT_EQ(store.bytes(), 3 * kBlockBytes);
  BlockBuffers in(3, 9);
  store.wait(store.read(0, in.all()));
  EXPECT_TRUE(in == BlockBuffers(3, 0));
}

TEST_P(BlockStoreTest, ReportsFileAndBlockOfAFlippedByte) {
  FileOptions options = options_in(folder.path(), GetParam());
  options.keep = true;
  BlockStore store(account, options, "t", 10 * kBlockBytes);
  const BlockBuffers out(10, 3);
  BlockBuffers in(10);
  store.wait(store.write(0, out.all()));
  {
    std::fstream file(store.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(7 * kBlockBytes + 100);
    file.put(static_cast<char>(~static_cast<int>(out.data.get()[7 * kBlockBytes + 100])));
    ASSERT_TRUE(file.flush());
  }
  store.wait(store.read(0, in.span(0, 7)));  // the blocks before the damaged one are readable
  EXPECT_THAT(outcome_of([&] {
                store.wait(store.read(0, in.all()));
                return std::string("read");
              }),
              AllOf(StartsWith("4 "), HasSubstr(store.path()), HasSubstr("block 7 "), HasSubstr("damaged")));
  store.wait(store.write(7 * kBlockBytes, out.span(7, 1)));  // the damaged block is readable after it is written again
  store.wait(store.read(0, in.all()));
  EXPECT_TRUE(in == out);
}

TEST_P(BlockStoreTest, RejectsATruncatedFile) {
  FileOptions options = options_in(folder.path(), GetParam());
  options.keep = true;
  BlockStore store(account, options, "t", 4 * kBlockBytes);
  std::filesystem::resize_file(store.path(), kBlockBytes);
  BlockBuffers in(4);
  EXPECT_THAT(outcome_of([&] {
                store.wait(store.read(0, in.all()));
                return std::string("read");
              }),
              AllOf(StartsWith("4 "), HasSubstr("reading")));
}

TEST_P(BlockStoreTest, ReportsNeededAndFreeBytesWhenTheDiskFillsUp) {
  const std::string io = GetParam();
  const std::string result = in_child([&]() -> std::string {
    if (!mount_privately("tmpfs", folder.path(), "size=1m")) return "skip";
    FileOptions options = options_in(folder.path(), io);
    options.reserve = false;
    BlockStore store(account, options, "t", 200 * kBlockBytes);
    const BlockBuffers out(200, 1);
    store.wait(store.write(0, out.span(0, 100)));
    std::ofstream(folder / "other") << std::string(500 << 10, 'x') << std::flush;
    store.wait(store.write(100 * kBlockBytes, out.span(100, 100)));
    return "written";
  });
  if (result == "skip") GTEST_SKIP() << "mounting is not permitted";
  EXPECT_THAT(result, AllOf(StartsWith("4 "), HasSubstr("needs 819200 bytes;"), HasSubstr(" free in " + folder.path()),
                            HasSubstr(" fit)"), HasSubstr("writing 409600 bytes at offset 409600")));
}

TEST_P(BlockStoreTest, ReportsAFileSizeLimitLikeAFullDisk) {
  const std::string io = GetParam();
  EXPECT_THAT(in_child([&]() -> std::string {
                BlockStore store(account, options_in(folder.path(), io), "t", 100 * kBlockBytes);
                const BlockBuffers out(100, 1);
                signal(SIGXFSZ, SIG_IGN);
                const rlimit limit{50 * kBlockBytes, 50 * kBlockBytes};
                setrlimit(RLIMIT_FSIZE, &limit);
                store.wait(store.write(0, out.span(0, 50)));
                store.wait(store.write(50 * kBlockBytes, out.span(50, 50)));
                return "written";
              }),
              AllOf(StartsWith("4 "), HasSubstr("needs 409600 bytes;"), HasSubstr("EFBIG")));
}

INSTANTIATE_TEST_SUITE_P(Io, BlockStoreTest, testing::Values("uring", "threads"),
                         [](const auto& row) { return std::string(row.param); });

TEST_F(BlockStoreFileTest, DetectsATooSmallDiskAtCreation) {
  const std::string result = in_child([&]() -> std::string {
    if (!mount_privately("tmpfs", folder.path(), "size=1m")) return "skip";
    const std::string first = outcome_of([&]() -> std::string {
      BlockStore store(account, options_in(folder.path()), "t", 2 << 20);
      return "made";
    });
    BlockStore fits(account, options_in(folder.path()), "t", 1 << 20);
    return fmt::format("{}|{}|{}", first, account.use(MemoryTier::file).peak, num_files(folder.path()));
  });
  if (result == "skip") GTEST_SKIP() << "mounting is not permitted";
  EXPECT_THAT(result, AllOf(StartsWith("4 "), HasSubstr("needs 2097152 bytes; 1048576 are free in " + folder.path()),
                            HasSubstr("at most 1048576 fit"), HasSubstr("|1048576|0")));
}

TEST_F(BlockStoreFileTest, ReservesDiskSpace) {
  const std::string result = in_child([&]() -> std::string {
    if (!mount_privately("tmpfs", folder.path(), "size=1m")) return "skip";
    BlockStore store(account, options_in(folder.path()), "t", 1 << 20);
    std::ofstream(folder / "other") << std::string(500 << 10, 'x') << std::flush;
    const BlockBuffers out(256, 1);
    store.wait(store.write(0, out.all()));
    return "written";
  });
  if (result == "skip") GTEST_SKIP() << "mounting is not permitted";
  EXPECT_EQ(result, "written");
}

TEST_F(BlockStoreFileTest, FallsBackToThePageCacheWithANote) {
  const std::string result = in_child([&]() -> std::string {
    if (!mount_privately("ramfs", folder.path(), "")) return "skip";
    BlockStore store(account, options_in(folder.path()), "t", 8 * kBlockBytes);
    const BlockBuffers out(8, 1);
    BlockBuffers in(8);
    store.wait(store.write(0, out.all()));
    store.wait(store.read(0, in.all()));
    return fmt::format("{} {} {}", in == out, store.direct(), fmt::join(store.notes(), ";"));
  });
  if (result == "skip") GTEST_SKIP() << "mounting is not permitted";
  EXPECT_THAT(result, AllOf(StartsWith("true false "), HasSubstr("does not support direct I/O"),
                            HasSubstr("cannot reserve space")));
}

TEST_F(BlockStoreFileTest, FallsBackToThreadsWithANoteWithoutIoUring) {
  EXPECT_THAT(in_child([&]() -> std::string {
                if (!forbid_io_uring()) return "skip";
                BlockStore store(account, options_in(folder.path()), "t", kBlockBytes);
                const BlockBuffers out(1, 1);
                store.wait(store.write(0, out.all()));
                return fmt::format("{} {}", store.io_name(), fmt::join(store.notes(), ";"));
              }),
              AllOf(StartsWith("threads "), HasSubstr("refuses io_uring"), HasSubstr("4 threads")));
  EXPECT_THAT(in_child([&]() -> std::string {
                if (!forbid_io_uring()) return "skip";
                BlockStore store(account, options_in(folder.path(), "uring"), "t", kBlockBytes);
                return "made";
              }),
              AllOf(StartsWith("4 "), HasSubstr("io = uring"), HasSubstr("Use io = threads")));
}

TEST_F(BlockStoreFileTest, CountsFileBytesAndEnforcesTheFileBudget) {
  {
    BlockStore store(account, options_in(folder.path()), "t", 3 * kBlockBytes);
    EXPECT_EQ(account.use(MemoryCategory::optimizer, MemoryTier::file).current, 3 * kBlockBytes);
  }
  EXPECT_EQ(account.use(MemoryTier::file).current, 0u);
  account.set_budget(MemoryTier::file, 2 * kBlockBytes);
  EXPECT_THROW(BlockStore(account, options_in(folder.path()), "t", 3 * kBlockBytes), DeviceError);
  EXPECT_EQ(num_files(folder.path()), 0u);
}

TEST_F(BlockStoreFileTest, SuggestsFixForInvalidBackendNameOrFolder) {
  EXPECT_THAT(outcome_of([&] {
                BlockStore(account, options_in(folder.path(), "urings"), "t", kBlockBytes);
                return std::string("made");
              }),
              AllOf(StartsWith("2 "), HasSubstr("uring, threads")));
  EXPECT_THAT(outcome_of([&] {
                BlockStore(account, options_in(folder / "nowhere"), "t", kBlockBytes);
                return std::string("made");
              }),
              AllOf(StartsWith("4 "), HasSubstr("folder does not exist")));
}

}  // namespace
}  // namespace esp::sync
