// What a decoder does with the values it makes.
#pragma once

namespace esp::kernel {

enum class Into { overwrite, add, subtract };  // y = v, y += v, y -= v; one rounding

template <typename T>
inline void put(T& y, T v, Into into) {
  y = into == Into::overwrite ? v : into == Into::add ? y + v : y - v;
}

}  // namespace esp::kernel
