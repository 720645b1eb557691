// Headers that every test includes, in addition to those of the modules.
#pragma once

#include "cmake/precompiled/common.h"

#include <gtest/gtest.h>
