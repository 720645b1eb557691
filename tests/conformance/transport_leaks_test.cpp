// Every transport releases all its resources.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "tests/conformance/suite.h"

namespace esp::net {
namespace {

namespace fs = std::filesystem;

struct Resources {
  size_t descriptors = 0, threads = 0, segments = 0;
  bool operator==(const Resources&) const = default;
  bool within(const Resources& other) const {
    return descriptors <= other.descriptors && threads <= other.threads && segments <= other.segments;
  }
};

std::ostream& operator<<(std::ostream& out, const Resources& resources) {
  return out << resources.descriptors << " descriptors, " << resources.threads << " threads, " << resources.segments
             << " segments";
}

size_t entries(const fs::path& folder, const std::string& prefix = "") {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    count += entry.path().filename().string().starts_with(prefix);
  return count;
}

// Number of shared-memory segments that this process created (their names contain the process id). Segments of other
// jobs do not count.
size_t segments_of(pid_t pid) {
  return entries("/dev/shm", "espalier-" + std::to_string(pid) + "-");
}

Resources resources() {
  return {entries("/proc/self/fd"), entries("/proc/self/task"), segments_of(getpid())};
}

// Waits until the process has no more resources than `before`; a joined thread may still be listed for a moment. Fewer
// than before are accepted: at the first count a fast peer may have had a pending connection at the listener.
void expect_no_leak(const Resources& before) {
  Deadline deadline = Deadline::after_ms(5000);
  while (!resources().within(before) && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(resources().within(before)) << resources() << ", before: " << before;
}

class TransportLeaks : public TransportSuite {
 protected:
  // Opens, uses and closes a transport. If the ranks are processes, each rank also checks its own resources.
  void open_and_close(const World& world, const Group& group, const std::function<void(Transport&)>& use) {
    Resources before = resources();
    {
      auto transport = open(world, group);
      use(*transport);
    }
    if (GetParam().processes) expect_no_leak(before);
  }
};
ESP_INSTANTIATE_FOR_ALL_TRANSPORTS(TransportLeaks);

TEST_P(TransportLeaks, ReleasesResourcesAfterUse) {
  run(3, [](const World&, const Group&) {});  // the first run creates resources that the process keeps
  Resources before = resources();
  run(3, [&](const World& world, const Group& group) {
    open_and_close(world, group, [&](Transport& transport) {
      TestTransfers transfers(transport);
      transfers.send((group.rank + 1) % 3, 1, 300'000);
      transfers.receive((group.rank + 2) % 3, 1, 300'000);
      transfers.finish();
    });
  });
  expect_no_leak(before);
}

TEST_P(TransportLeaks, ReleasesResourcesWhenClosedWithMessagesInFlight) {
  run(2, [](const World&, const Group&) {});
  Resources before = resources();
  run(2, [&](const World& world, const Group& group) {
    open_and_close(world, group, [&](Transport& transport) {
      TestTransfers transfers(transport);
      transfers.send(1 - group.rank, 1, 3'000'000);
      transfers.receive(1 - group.rank, 2, 10);
      // Here the transport is closed while both transfers are unfinished.
    });
  });
  expect_no_leak(before);
}

}  // namespace
}  // namespace esp::net
