// Tests of the C interface within one process: results, error codes, error messages, asynchronous calls (esp_work) and
// groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "espalier/collectives.h"

namespace {

constexpr int kRanks = 3;

// One communicator per local rank. The destructor finalizes them.
struct World {
  explicit World(const char* options = "timeout_s=30") {
    EXPECT_EQ(esp_init_local(kRanks, options, comms), ESP_OK) << esp_last_error();
  }
  ~World() {
    for (esp_comm* comm : comms) esp_finalize(comm);
  }
  esp_comm* comms[kRanks] = {};
};

TEST(CInterface, DrivesSeveralRanksFromOneThread) {
  World world;
  std::vector<float> in[kRanks], out[kRanks];
  ASSERT_EQ(esp_group_begin(), ESP_OK);
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(esp_rank(world.comms[r]), r);
    EXPECT_EQ(esp_size(world.comms[r]), kRanks);
    in[r].assign(1000, static_cast<float>(r));
    out[r].assign(1000, -1.0f);
    ASSERT_EQ(esp_all_reduce(world.comms[r], in[r].data(), out[r].data(), 1000, ESP_F32, ESP_AVG, nullptr), ESP_OK);
  }
  ASSERT_EQ(esp_group_end(), ESP_OK) << esp_last_error();
  for (auto& buffer : out) EXPECT_EQ(buffer, std::vector<float>(1000, 1.0f));
}

TEST(CInterface, RunsOneThreadPerRankWithAsyncCallsInFlight) {
  World world;
  std::vector<std::jthread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      esp_comm* comm = world.comms[r];
      std::vector<int64_t> a(500, r), b(500, 10 * r), all(500 * kRanks);
      esp_work *first = nullptr, *second = nullptr;
      EXPECT_EQ(esp_all_reduce(comm, a.data(), a.data(), 500, ESP_I64, ESP_SUM, &first), ESP_OK);
      EXPECT_EQ(esp_all_gather(comm, b.data(), all.data(), 500, ESP_I64, &second), ESP_OK);
      EXPECT_EQ(esp_work_wait(second, -1), ESP_OK);
      int done = 0;
      EXPECT_EQ(esp_work_test(first, &done), ESP_OK);
      EXPECT_EQ(done, 1);  // the calls complete in the order in which they were made
      EXPECT_EQ(esp_work_wait(first, 10), ESP_OK);
      esp_work_free(first);
      esp_work_free(second);
      EXPECT_EQ(a, std::vector<int64_t>(500, 3));
      EXPECT_EQ(all.back(), 20);
      EXPECT_EQ(esp_barrier(comm, nullptr), ESP_OK);
    });
}

TEST(CInterface, SplitsCommunicatorAndAllocatesMemoryWithinGroup) {
  World world;
  esp_comm* halves[kRanks] = {};
  void* memory[kRanks] = {};
  esp_group_begin();
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(esp_split(world.comms[r], r == 2 ? -1 : 0, -r, &halves[r]), ESP_OK);
  ASSERT_EQ(esp_group_end(), ESP_OK) << esp_last_error();
  EXPECT_EQ(halves[2], nullptr);
  EXPECT_EQ(esp_rank(halves[0]), 1);
  EXPECT_EQ(esp_size(halves[1]), 2);
  esp_group_begin();
  for (int r = 0; r < kRanks; ++r) esp_allocate(world.comms[r], 4096, &memory[r]);
  ASSERT_EQ(esp_group_end(), ESP_OK) << esp_last_error();
  for (int r = 0; r < kRanks; ++r) {
    ASSERT_NE(memory[r], nullptr);
    static_cast<char*>(memory[r])[4095] = 1;
    EXPECT_EQ(esp_free(world.comms[r], memory[r]), ESP_OK);
    EXPECT_EQ(esp_free(world.comms[r], memory[r]), ESP_ERROR_USAGE);
    esp_finalize(halves[r]);
  }
}

TEST(CInterface, FinalizesCommunicatorAfterQueuedGroupCalls) {
  esp_comm* comms[2] = {};
  ASSERT_EQ(esp_init_local(2, nullptr, comms), ESP_OK);
  float data[2][4] = {{1, 2, 3, 4}, {1, 2, 3, 4}};
  esp_group_begin();
  for (int r = 0; r < 2; ++r) EXPECT_EQ(esp_finalize(comms[r]), ESP_OK);
  for (int r = 0; r < 2; ++r) esp_all_reduce(comms[r], data[r], data[r], 4, ESP_F32, ESP_SUM, nullptr);
  ASSERT_EQ(esp_group_end(), ESP_OK) << esp_last_error();
  EXPECT_EQ(data[1][3], 8);
}

TEST(CInterface, StartsNoGroupCallWhenOneIsInvalid) {
  World world("timeout_s=30");
  float data[kRanks][4] = {};
  for (const bool wrong : {true, false}) {
    esp_group_begin();
    for (int r = 0; r < kRanks; ++r)
      esp_all_reduce(world.comms[r], wrong && r == 2 ? nullptr : data[r], data[r], 4, ESP_F32, ESP_SUM, nullptr);
    EXPECT_EQ(esp_group_end(), wrong ? ESP_ERROR_USAGE : ESP_OK) << esp_last_error();
  }
}

TEST(CInterface, RejectsAllocationThatIsTooLarge) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX - 4000, size_t{1} << 50}) {
    World world;
    void* memory[kRanks] = {};
    esp_group_begin();
    for (int r = 0; r < kRanks; ++r) esp_allocate(world.comms[r], bytes, &memory[r]);
    EXPECT_NE(esp_group_end(), ESP_OK) << bytes;
    for (void* one : memory) EXPECT_EQ(one, nullptr) << bytes;
  }
  esp_comm* alone = nullptr;
  void* memory = nullptr;
  ASSERT_EQ(esp_init_local(1, nullptr, &alone), ESP_OK);
  EXPECT_EQ(esp_allocate(alone, SIZE_MAX, &memory), ESP_ERROR_USAGE);
  esp_finalize(alone);
}

TEST(CInterface, ReportsAllocationSizesThatDifferBetweenRanks) {
  World world("timeout_s=5");
  void* memory[kRanks] = {};
  esp_group_begin();
  for (int r = 0; r < kRanks; ++r) esp_allocate(world.comms[r], r == 1 ? 1 << 20 : 4096, &memory[r]);
  EXPECT_EQ(esp_group_end(), ESP_ERROR_COMM);
}

TEST(CInterface, RejectsCountsBeyondAddressSpace) {
  esp_comm* comm = nullptr;
  ASSERT_EQ(esp_init_local(1, nullptr, &comm), ESP_OK);
  float in[4] = {}, out[4] = {};
  const std::pair<size_t, size_t> rows[] = {
      {4, SIZE_MAX - 1}, {2, SIZE_MAX - 2}, {size_t{1} << 63, 0}, {size_t{1} << 62, 0}};
  for (const auto& [count, offset] : rows)
    EXPECT_EQ(esp_all_to_all_v(comm, in, &count, &offset, out, &count, &offset, ESP_F32, nullptr), ESP_ERROR_USAGE)
        << count << " at " << offset;
  EXPECT_EQ(esp_work_wait(nullptr, 0), ESP_ERROR_USAGE);
  esp_finalize(comm);
}

TEST(CInterface, ReportsErrorsByCodeAndMessage) {
  World world("timeout_s=0.3");
  float data[4] = {};
  EXPECT_EQ(esp_all_reduce(nullptr, data, data, 4, ESP_F32, ESP_SUM, nullptr), ESP_ERROR_USAGE);
  EXPECT_EQ(esp_broadcast(world.comms[0], data, 4, ESP_F32, 9, nullptr), ESP_ERROR_USAGE);
  EXPECT_NE(std::string(esp_last_error()).find("root: got 9"), std::string::npos) << esp_last_error();
  for (int wrong : {-1, 9, 257})
    EXPECT_EQ(esp_all_reduce(world.comms[0], data, data, 4, wrong, ESP_SUM, nullptr), ESP_ERROR_USAGE);
  for (int wrong : {-1, 5, 256})
    EXPECT_EQ(esp_all_reduce(world.comms[0], data, data, 4, ESP_F32, wrong, nullptr), ESP_ERROR_USAGE);
  EXPECT_EQ(esp_group_end(), ESP_ERROR_USAGE);
  // Each thread has its own last error.
  std::jthread([] { EXPECT_STREQ(esp_last_error(), ""); });

  esp_work* work = nullptr;
  EXPECT_EQ(esp_barrier(world.comms[1], &work), ESP_OK);
  EXPECT_EQ(esp_work_wait(work, 0.01), ESP_NOT_DONE);
  // the wait ends with an error, because the other ranks never enter the barrier
  EXPECT_EQ(esp_work_wait(work, -1), ESP_ERROR_COMM);
  EXPECT_GE(esp_last_error_rank(), 0);
  esp_work_free(work);
  EXPECT_EQ(esp_barrier(world.comms[1], nullptr), ESP_ERROR_COMM);
}

TEST(CInterface, RejectsInvalidOptions) {
  esp_comm* comms[2] = {};
  EXPECT_EQ(esp_init_local(2, "tiemout_s=3", comms), ESP_ERROR_USAGE);
  EXPECT_NE(std::string(esp_last_error()).find("did you mean \"timeout_s\""), std::string::npos) << esp_last_error();
  EXPECT_EQ(esp_init_local(2, "timeout_s=soon", comms), ESP_ERROR_USAGE);
  EXPECT_EQ(esp_init_local(2, "transport=pigeon", comms), ESP_ERROR_USAGE);
  EXPECT_EQ(esp_init_local(0, nullptr, comms), ESP_ERROR_USAGE);
  EXPECT_EQ(esp_init_rank(2, 2, "127.0.0.1", 1, nullptr, nullptr, comms), ESP_ERROR_USAGE);
  EXPECT_EQ(esp_init_rank(0, 2, "127.0.0.1", 1, "/nonexistent/secret", nullptr, comms), ESP_ERROR_FILES);
  EXPECT_EQ(esp_init_rank(1, 2, "192.0.2.7", 29500, nullptr, nullptr, comms), ESP_ERROR_USAGE);
  EXPECT_NE(std::string(esp_last_error()).find("need a secret"), std::string::npos) << esp_last_error();
  EXPECT_EQ(esp_api_version(), ESP_API_VERSION);
}

TEST(CInterface, InitialisesSingleRankWorld) {
  esp_comm* comm = nullptr;
  ASSERT_EQ(esp_init_rank(0, 1, nullptr, 0, nullptr, nullptr, &comm), ESP_OK) << esp_last_error();
  double one = 1, two = 0;
  EXPECT_EQ(esp_all_reduce(comm, &one, &two, 1, ESP_F64, ESP_SUM, nullptr), ESP_OK);
  EXPECT_EQ(two, 1.0);
  EXPECT_EQ(esp_finalize(comm), ESP_OK);
}

}  // namespace
