// Pairwise all-to-all. Round k: send the block for rank r + k, receive the block from r - k. Also implements
// all_to_all_v, with a count and an offset per peer.
#include "esp/base/check.h"
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_to_all_pairwise(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, r = spec.rank;
  BufferRegion in = input(0, spec.count), out = output(0, spec.count);
  builder.copy(chunk(out, n, r), chunk(in, n, r));
  for (int k = 1; k < n; ++k, ++builder.round) {
    builder.send((r + k) % n, chunk(in, n, r + k));
    builder.receive(mod(r - k, n), chunk(out, n, r - k));
  }
  return builder.finish();
}

Schedule all_to_all_v_pairwise(const CollectiveSpec& spec) {
  ScheduleBuilder builder;
  int n = spec.size, r = spec.rank;
  for (auto counts : {spec.send_counts, spec.send_offsets, spec.recv_counts, spec.recv_offsets})
    ESP_CHECK(counts.size() == static_cast<size_t>(n),
              "all_to_all_v: got {} counts or offsets; expected {}, one per rank", counts.size(), n);
  auto to = [&](int peer) { return input(spec.send_offsets[peer], spec.send_counts[peer]); };
  auto from = [&](int peer) { return output(spec.recv_offsets[peer], spec.recv_counts[peer]); };
  builder.copy(from(r), to(r));
  for (int k = 1; k < n; ++k, ++builder.round) {
    builder.send((r + k) % n, to((r + k) % n));
    builder.receive(mod(r - k, n), from(mod(r - k, n)));
  }
  return builder.finish();
}

}  // namespace esp::comm
