#include "esp/kernel/cpu/attention_work.h"

#include <memory>
#include <new>

namespace esp::kernel {

void check_attention(const AttentionShape& s) {
  ESP_CHECK(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0,
            "attention: got heads = {}, kv_heads = {}; expected heads to be a multiple of kv_heads", s.heads,
            s.kv_heads);
  ESP_CHECK(s.head_dim > 0, "attention head_dim: got {}; expected > 0", s.head_dim);
  ESP_CHECK(s.dropout >= 0 && s.dropout <= 1 - 0x1p-31, "attention dropout: got {}; expected >= 0 and < 1", s.dropout);
}

void* attention_scratch(size_t bytes) {
  struct FreeDeleter {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<std::byte[], FreeDeleter> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    memory.reset();
    memory.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
    size = bytes;
  }
  return memory.get();
}

}  // namespace esp::kernel
