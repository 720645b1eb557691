#include "esp/kernel/embedding.h"
#include "esp/kernel/floating.h"

namespace esp::kernel {

void rotary(void* x, const RotaryShape& shape, DType dtype, const device::Stream&) {
  ref::rotary(x, shape, dtype);
}

}  // namespace esp::kernel
