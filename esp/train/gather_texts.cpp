#include "esp/train/gather_texts.h"

#include <cstdint>
#include <numeric>

namespace esp::train {

std::vector<std::string> gather_texts(comm::Communicator* ranks, const std::string& mine) {
  if (!ranks) return {mine};
  const auto size = static_cast<size_t>(ranks->size());
  std::vector<int64_t> lengths(size);
  const auto length = static_cast<int64_t>(mine.size());
  ranks->all_gather(&length, lengths.data(), 1, DType::i64);
  // All-gather as an all-to-all: each rank sends its text, whose length differs by rank, to every rank.
  std::vector<size_t> send_counts(size, mine.size()), send_offsets(size, 0), counts(lengths.begin(), lengths.end()),
      offsets(size);
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), size_t{0});
  std::string all(offsets.back() + counts.back(), '\0');
  comm::Call call;
  call.op = comm::Op::all_to_all_v;
  call.in = mine.data();
  call.out = all.data();
  call.dtype = DType::u8;
  call.send_counts = send_counts;
  call.send_offsets = send_offsets;
  call.recv_counts = counts;
  call.recv_offsets = offsets;
  ranks->run(call);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < size; ++rank) texts.push_back(all.substr(offsets[rank], counts[rank]));
  return texts;
}

std::string broadcast_text(comm::Communicator* ranks, const std::string& mine) {
  if (!ranks) return mine;
  auto length = static_cast<int64_t>(mine.size());
  ranks->broadcast(&length, 1, DType::i64, 0);
  std::string text = mine;
  text.resize(static_cast<size_t>(length));
  if (length > 0) ranks->broadcast(text.data(), text.size(), DType::u8, 0);
  return text;
}

}  // namespace esp::train
