// Nothing: a target needs a source before it can hold a precompiled header.
