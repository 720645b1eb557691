// Round k: send the block for rank r + k, receive the one from r - k. Also the irregular form, with a count and an
// offset per peer.
#include "esp/base/check.h"
#include "esp/comm/algo/algorithms.h"
#include "esp/comm/algo/phases.h"

namespace esp::comm {

Schedule all_to_all_pairwise(const Problem& problem) {
  Draft draft;
  int n = problem.size, r = problem.rank;
  Region in = input(0, problem.count), out = output(0, problem.count);
  draft.copy(chunk(out, n, r), chunk(in, n, r));
  for (int k = 1; k < n; ++k, ++draft.round) {
    draft.send((r + k) % n, chunk(in, n, r + k));
    draft.receive(mod(r - k, n), chunk(out, n, r - k));
  }
  return draft.finish();
}

Schedule all_to_all_v_pairwise(const Problem& problem) {
  Draft draft;
  int n = problem.size, r = problem.rank;
  for (auto counts : {problem.send_counts, problem.send_offsets, problem.recv_counts, problem.recv_offsets})
    ESP_CHECK(counts.size() == static_cast<size_t>(n), "{} counts for {} ranks", counts.size(), n);
  auto to = [&](int peer) { return input(problem.send_offsets[peer], problem.send_counts[peer]); };
  auto from = [&](int peer) { return output(problem.recv_offsets[peer], problem.recv_counts[peer]); };
  draft.copy(from(r), to(r));
  for (int k = 1; k < n; ++k, ++draft.round) {
    draft.send((r + k) % n, to((r + k) % n));
    draft.receive(mod(r - k, n), from(mod(r - k, n)));
  }
  return draft.finish();
}

}  // namespace esp::comm
