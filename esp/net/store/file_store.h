// FileStore: the store as a shared directory. One file per key, written under a temporary name and renamed, so that no
// reader sees a partial value. A lock file serialises changes. Waiting is polling with growing pauses, because shared
// file systems do not notify of changes. Intended for rendezvous, not for speed.
#pragma once

#include <string>

#include "esp/net/store.h"

namespace esp::net {

class FileStore final : public Store {
 public:
  // Creates the directory, accessible to this user only, if it is missing. Refuses a directory that others may write
  // to.
  explicit FileStore(std::string directory);

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::optional<std::string> try_get(std::string_view key) override;
  int64_t add(std::string_view key, int64_t delta) override;
  void erase(std::string_view key) override;

 private:
  std::string path_of(std::string_view key) const;
  void replace(const std::string& path, std::string_view value) const;
  void remove_temporary_files() const;

  std::string directory_;
};

}  // namespace esp::net
