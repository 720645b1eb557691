// How a decoder writes its values.
#pragma once

namespace esp::kernel {

enum class WriteMode { overwrite, add, subtract };  // y = v, y += v, y -= v; one rounding

template <typename T>
inline void put(T& y, T v, WriteMode into) {
  y = into == WriteMode::overwrite ? v : into == WriteMode::add ? y + v : y - v;
}

}  // namespace esp::kernel
