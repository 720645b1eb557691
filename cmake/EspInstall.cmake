# Headers, libraries, CMake package and pkg-config file for people who build on us.
