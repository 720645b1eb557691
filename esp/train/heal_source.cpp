#include "esp/train/heal_source.h"

namespace esp::train {

Healed source_of(std::span<const int64_t> said) {
  Healed healed;
  for (size_t at = 0; at < said.size(); at += kHealWords) {
    const int rank = static_cast<int>(at / kHealWords);
    if (said[at] > healed.step) {
      healed.step = said[at];
      healed.source = rank;
    }
    healed.num_survivors += static_cast<int>(said[at + 1]);
    if (said[at + 1] == 0) healed.newcomers.push_back(rank);
  }
  return healed;
}

}  // namespace esp::train
