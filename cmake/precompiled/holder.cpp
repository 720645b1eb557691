// Empty: CMake requires a source file in a target that owns a precompiled header.
