// What every test includes, on top of what the rooms do.
#pragma once

#include "cmake/precompiled/common.h"

#include <gtest/gtest.h>
