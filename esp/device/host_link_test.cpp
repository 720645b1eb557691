#include "esp/device/host_link.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace esp::device {
namespace {

TEST(HostLink, CopiesAndCountsEachDirection) {
  for (const int num_threads : {1, 3}) {
    ThreadPool threads(num_threads);
    const Stream stream{.device = {}, .pool = &threads, .queue = nullptr};
    HostLink link;
    uint64_t down = 0, up = 0;
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{3'000'001}}) {
      std::vector<unsigned char> from(count), to(count + 1, 255), back(count);
      std::iota(from.begin(), from.end(), static_cast<unsigned char>(count));
      link.down(to.data(), from.data(), count, stream);
      link.up(back.data(), to.data(), count, stream);
      link.up(back.data(), to.data(), count / 2, stream);
      EXPECT_EQ(back, from);
      EXPECT_EQ(to.back(), 255);
      down += count;
      up += count + count / 2;
    }
    EXPECT_EQ(link.bytes_down(), down);
    EXPECT_EQ(link.bytes_up(), up);
  }
}

TEST(HostLink, MeasuresBandwidth) {
  std::vector<char> from(8 << 20, 1), to(8 << 20);
  HostLink link;
  link.down(to.data(), from.data(), from.size(), {});
  const LinkUse first = link.use_down();
  EXPECT_EQ(first.bytes, from.size());
  EXPECT_GT(first.seconds, 0);
  EXPECT_DOUBLE_EQ(first.gb_per_s(), static_cast<double>(first.bytes) * 1e-9 / first.seconds);
  EXPECT_EQ(link.use_up().gb_per_s(), 0);
  link.down(to.data(), from.data(), 1000, {});
  EXPECT_EQ((link.use_down() - first).bytes, 1000u);
  const LinkRates alone = measure_link({}, host_memory(), host_memory(), 4 << 20);
  EXPECT_GT(alone.down_gb_per_s, 0);
  EXPECT_GT(alone.up_gb_per_s, 0);
}

}  // namespace
}  // namespace esp::device
