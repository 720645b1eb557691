// What every transport leaves behind: nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "tests/conformance/suite.h"

namespace esp::net {
namespace {

namespace fs = std::filesystem;

struct Holdings {
  size_t descriptors = 0, threads = 0, segments = 0;
  bool operator==(const Holdings&) const = default;
  bool within(const Holdings& other) const {
    return descriptors <= other.descriptors && threads <= other.threads && segments <= other.segments;
  }
};

std::ostream& operator<<(std::ostream& out, const Holdings& holdings) {
  return out << holdings.descriptors << " descriptors, " << holdings.threads << " threads, " << holdings.segments
             << " segments";
}

size_t entries(const fs::path& folder, const std::string& prefix = "") {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    count += entry.path().filename().string().starts_with(prefix);
  return count;
}

// Segments are those whose name carries a process of ours, so that jobs beside us do not count.
size_t segments_of(pid_t pid) {
  return entries("/dev/shm", "espalier-" + std::to_string(pid) + "-");
}

Holdings holdings() {
  return {entries("/proc/self/fd"), entries("/proc/self/task"), segments_of(getpid())};
}

// A thread that was joined may stay listed for a moment. Less than before is fine: a peer quicker than us may have been
// waiting at our listener when we looked first.
void expect_only(const Holdings& before) {
  Deadline deadline = Deadline::after_ms(5000);
  while (!holdings().within(before) && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(holdings().within(before)) << holdings() << ", before: " << before;
}

class TransportLeavesNothing : public TransportSuite {
 protected:
  // Opens, uses and closes; where ranks are processes each looks after itself too.
  void open_and_close(const World& world, const Group& group, const std::function<void(Transport&)>& use) {
    Holdings before = holdings();
    {
      auto transport = open(world, group);
      use(*transport);
    }
    if (GetParam().processes) expect_only(before);
  }
};
ESP_OVER_EVERY_TRANSPORT(TransportLeavesNothing);

TEST_P(TransportLeavesNothing, AfterUse) {
  run(3, [](const World&, const Group&) {});  // whatever the first run sets up for good
  Holdings before = holdings();
  run(3, [&](const World& world, const Group& group) {
    open_and_close(world, group, [&](Transport& transport) {
      Post post(transport);
      post.send((group.rank + 1) % 3, 1, 300'000);
      post.receive((group.rank + 2) % 3, 1, 300'000);
      post.finish();
    });
  });
  expect_only(before);
}

TEST_P(TransportLeavesNothing, WhenClosedWithMessagesUnderWay) {
  run(2, [](const World&, const Group&) {});
  Holdings before = holdings();
  run(2, [&](const World& world, const Group& group) {
    open_and_close(world, group, [&](Transport& transport) {
      Post post(transport);
      post.send(1 - group.rank, 1, 3'000'000);
      post.receive(1 - group.rank, 2, 10);
      // Dropped here, unfinished.
    });
  });
  expect_only(before);
}

}  // namespace
}  // namespace esp::net
