#include "esp/base/check.h"

#include "esp/base/error.h"

namespace esp {

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  std::string where(file);
  if (auto at = where.rfind("/esp/"); at != std::string::npos) where = where.substr(at + 1);
  throw InternalError(fmt::format("{}:{}: expected {}{}{} (this is a bug in espalier; please report it)", where, line,
                                  condition, detail.empty() ? "" : ": ", detail));
}

}  // namespace esp
