// FileStore: the store as a directory that all ranks see: one file per key, written under another name and renamed, so
// that nobody reads half a value. Changes are serialised by a lock file; waiting is polling, with growing pauses, since
// shared file systems do not tell of changes. Made for finding each other, not for speed.
#pragma once

#include <string>

#include "esp/net/store.h"

namespace esp::net {

class FileStore final : public Store {
 public:
  // Creates the directory, for this user alone, when it is missing. One that others may write to is refused.
  explicit FileStore(std::string directory);

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::optional<std::string> try_get(std::string_view key) override;
  int64_t add(std::string_view key, int64_t delta) override;
  void erase(std::string_view key) override;

 private:
  std::string path_of(std::string_view key) const;
  void replace(const std::string& path, std::string_view value) const;
  void sweep_drafts() const;

  std::string directory_;
};

}  // namespace esp::net
