// Exception types for external failures. Internal invariants use ESP_CHECK (base/check.h).
//
// Each type maps to one exit code of the binary, so that a launcher can decide about a restart. A message contains the
// value, its source and the expected values. Errors are copyable values and can cross threads in a std::exception_ptr.
#pragma once

#include <stdexcept>
#include <string>

namespace esp {

enum class ExitCode : int { done = 0, internal = 1, usage = 2, comm = 3, files = 4, requeue = 75 };

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

// A wrong argument, run file or call. Nothing was started.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ExitCode::usage, message) {}
};

// A communication failure: a peer is lost, does not answer, or made a different call. `peer` is the failed rank, or -1
// if unknown.
class CommError : public Error {
 public:
  enum class Kind { lost, timeout, mismatch, refused, corrupt, aborted };
  CommError(Kind kind, int peer, const std::string& message)
      : Error(ExitCode::comm, message), kind_(kind), peer_(peer) {}
  Kind kind() const { return kind_; }
  int peer() const { return peer_; }

 private:
  Kind kind_;
  int peer_;
};

// A failure of a file, a disk or file contents.
class IoError : public Error {
 public:
  explicit IoError(const std::string& message) : Error(ExitCode::files, message) {}
};

// A failure of an accelerator or its memory.
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message) : Error(ExitCode::internal, message) {}
};

// A bug in Espalier; thrown by ESP_CHECK only.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ExitCode::internal, message) {}
};

// Description of an errno value, for example "No such file or directory (ENOENT)".
std::string errno_text(int error_number);

}  // namespace esp
