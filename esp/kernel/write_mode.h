// How a decoder writes a decoded value v to y.
#pragma once

namespace esp::kernel {

// overwrite: y = v; add: y += v; subtract: y -= v; each rounded once
enum class WriteMode { overwrite, add, subtract };

template <typename T>
inline void put(T& y, T v, WriteMode into) {
  y = into == WriteMode::overwrite ? v : into == WriteMode::add ? y + v : y - v;
}

}  // namespace esp::kernel
