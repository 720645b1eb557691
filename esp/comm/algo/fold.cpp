#include "esp/comm/algo/phases.h"

namespace esp::comm {

Fold fold_of(int rank, int size) {
  Fold fold;
  fold.p = 1 << floor_log2(size);
  fold.rem = size - fold.p;
  if (rank < 2 * fold.rem) {
    fold.partner = rank ^ 1;
    fold.v = rank % 2 == 1 ? rank / 2 : -1;
  } else {
    fold.v = rank - fold.rem;
  }
  return fold;
}

void fold_in(Draft& draft, const Fold& fold, const Region& data) {
  if (fold.partner >= 0) {
    if (fold.v < 0) draft.send(fold.partner, data);
    if (fold.v >= 0) draft.receive_reduce(fold.partner, data);
  }
  draft.round += fold.rounds();
}

void fold_out(Draft& draft, const Fold& fold, const Region& data) {
  if (fold.partner >= 0) {
    if (fold.v >= 0) draft.send(fold.partner, data);
    if (fold.v < 0) draft.receive(fold.partner, data);
  }
  draft.round += fold.rounds();
}

}  // namespace esp::comm
