// Bruck all-to-all (Bruck et al. 1997). Slot j starts as the block for rank r + j. For each bit k, all slots with that
// bit set go to rank r + 2^k in one message. At the end slot j holds the block from rank r - j. A rank sends ceil(log2
// N) messages, but the block in slot j is sent popcount(j) times, so the algorithm is for small blocks only.
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_to_all_bruck(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, r = spec.rank;
  BufferRegion in = input(0, spec.count), out = output(0, spec.count);
  builder.copy(chunk(out, n, r), chunk(in, n, r));  // slot 0 is this rank's own block; it is never sent
  size_t block = spec.count / static_cast<size_t>(n);
  // Where the content of each slot is stored: in the input until the slot is first received, then where the last
  // message stored it.
  std::vector<BufferRegion> slot;
  for (int j = 0; j < n; ++j) slot.push_back(chunk(in, n, r + j));
  for (int bit = 1; bit < n; bit *= 2, ++builder.round) {
    std::vector<int> moving;
    for (int j = bit; j < n; ++j)
      if ((j & bit) != 0) moving.push_back(j);
    int m = static_cast<int>(moving.size());
    BufferRegion packed = builder.scratch(block * moving.size()), arrived = builder.scratch(block * moving.size());
    for (int i = 0; i < m; ++i)
      builder.copy(chunk(packed, m, i), slot[static_cast<size_t>(moving[static_cast<size_t>(i)])]);
    builder.send((r + bit) % n, packed);
    builder.receive(mod(r - bit, n), arrived);
    for (int i = 0; i < m; ++i) slot[static_cast<size_t>(moving[static_cast<size_t>(i)])] = chunk(arrived, m, i);
  }
  for (int j = 1; j < n; ++j) builder.copy(chunk(out, n, r - j), slot[static_cast<size_t>(j)]);
  return builder.finish();
}

}  // namespace esp::comm
