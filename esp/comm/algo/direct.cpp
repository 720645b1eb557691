#include "esp/comm/algo/phases.h"

namespace esp::comm {

void direct_reduce_scatter(Draft& draft, const Line& line, const Region& from, const Region& into) {
  int n = line.size();
  std::vector<Region> terms(static_cast<size_t>(n));
  terms[static_cast<size_t>(line.me)] = chunk(from, n, line.me);
  for (int k = 1; k < n; ++k, ++draft.round) {
    Region& term = terms[static_cast<size_t>(mod(line.me - k, n))];
    term = draft.scratch(into.count);
    draft.send(line.at(line.me + k), chunk(from, n, line.me + k));
    draft.receive(line.at(line.me - k), term);
  }
  // Labelled with the last exchange, which completes the terms.
  if (n > 1) --draft.round;
  if (n > 1)
    draft.reduce(into, terms);
  else
    draft.copy(into, terms[0]);
  if (n > 1) ++draft.round;
}

}  // namespace esp::comm
