#include "esp/comm/algo/phases.h"

namespace esp::comm {

PowerOfTwoFold make_fold(int rank, int size) {
  PowerOfTwoFold fold;
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

void fold_in(ScheduleBuilder& builder, const PowerOfTwoFold& fold, const BufferRegion& data) {
  if (fold.partner >= 0) {
    if (fold.v < 0) builder.send(fold.partner, data);
    if (fold.v >= 0) builder.receive_reduce(fold.partner, data);
  }
  builder.round += fold.rounds();
}

void fold_out(ScheduleBuilder& builder, const PowerOfTwoFold& fold, const BufferRegion& data) {
  if (fold.partner >= 0) {
    if (fold.v >= 0) builder.send(fold.partner, data);
    if (fold.v < 0) builder.receive(fold.partner, data);
  }
  builder.round += fold.rounds();
}

}  // namespace esp::comm
