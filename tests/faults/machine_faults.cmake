# Clock jumps, cgroup memory limits, refused system calls.
add_library(clock_shim SHARED clock_shim.c)
esp_fault_test(machine_faults_test.py ENVIRONMENT "CLOCK_SHIM=$<TARGET_FILE:clock_shim>" CLASSES WallClock OutOfMemory RefusedSystemCalls)
